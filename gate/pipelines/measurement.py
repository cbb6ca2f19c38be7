"""The measuring pipelines: what determinism costs, knob by knob, and how noisy the default is."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from gate.comparison.attribution import Search, knob_fate, minimal_set, removal_order
from gate.comparison.calibration import metric_noise, undetected_share
from gate.comparison.compare import compare_results
from gate.comparison.cost_arms import Arms, arm_figures, arm_price, control_price, shortest_run
from gate.comparison.equality import distinct_results, equal_results
from gate.comparison.measurements import (
    ArmFigures,
    CostDocument,
    KnobPrice,
    MinimalSet,
    NoiseDocument,
    Price,
    Provenance,
    ReductionSpread,
    WeightDistance,
)
from gate.comparison.tolerance_snippet import tolerance_snippet
from gate.comparison.tolerances import tolerance_factor
from gate.comparison.weights import weight_noise
from gate.evidence.run_evidence import EvidenceSet, RunEvidence
from gate.pipelines.adapters import Adapters
from gate.pipelines.runs import Session
from gate.settings.measuring import CostSettings
from gate.settings.priced_knobs import NO_KNOBS, KnobSet, PricedKnob, knob_names, strict_knobs
from gate.training.cost_plan import (
    DEFAULT_A,
    DEFAULT_B,
    STRICT,
    STRICT_FILL,
    Arm,
    applicable_knobs,
    cost_arms,
    first_run,
    judged_arm,
    plan_noise,
    plan_rounds,
    without,
)
from gate.verdict.request import GateRequest

PAIR = 2
DEFAULTS = (DEFAULT_A, DEFAULT_B)


class Priced:
    """All runs of a cost call, by arm and by knob set, in the order in which they were made."""

    def __init__(self, session: Session) -> None:
        """Nothing is run before `rounds`."""
        self._session = session
        self._labels = count(1)
        self.runs: list[RunEvidence] = []
        self.arms: dict[str, list[RunEvidence]] = {}
        self._sets: dict[KnobSet, list[RunEvidence]] = {}

    def rounds(self, request: GateRequest, *, attribute: bool) -> tuple[Arm, ...]:
        """Run every arm of every round; the first run shows which knobs can matter here."""
        fill = request.settings.determinism.fill_uninitialized_memory
        # what the training runs on is known only once it
        # has run: knobs of GPUs cost nothing on a CPU
        first = self._session.run(first_run())
        on_gpu = first.environment.on_gpu
        toggled = applicable_knobs(on_gpu=on_gpu) if attribute else ()
        arms = cost_arms(fill=fill, toggled=toggled)
        knobs = {arm.name: arm.knobs for arm in arms}
        self._note(DEFAULT_A, NO_KNOBS, first)
        # the first of the plan has been made already
        for name, planned in plan_rounds(arms, request.settings.cost.rounds)[1:]:
            self._note(name, knobs[name], self._session.run(planned))
        return arms

    def _note(self, name: str, knobs: KnobSet, run: RunEvidence) -> None:
        self.runs.append(run)
        self.arms.setdefault(name, []).append(run)
        self._sets.setdefault(knobs, []).append(run)

    def by_arm(self) -> dict[str, tuple[RunEvidence, ...]]:
        """The runs of each arm, one a round."""
        return {name: tuple(runs) for name, runs in self.arms.items()}

    def of(self, knobs: KnobSet) -> tuple[RunEvidence, ...]:
        """Every run of a knob set."""
        return tuple(self._sets.get(knobs, ()))

    def equal(self, knobs: KnobSet) -> bool:
        """Whether all runs of a knob set agree; runs until there are two."""
        # runs of the rounds count: equality costs no run where an arm was made twice anyway
        while len(self.of(knobs)) < PAIR:
            self._once_more(knobs)
        return distinct_results(self.of(knobs)) == 1

    def verify(self, knobs: KnobSet) -> bool:
        """Whether one more run of a knob set agrees with all before it."""
        self._once_more(knobs)
        return distinct_results(self.of(knobs)) == 1

    def _once_more(self, knobs: KnobSet) -> None:
        arm = Arm(name="reduced", knobs=knobs)
        run = self._session.run(arm.run(f"reduced-{next(self._labels)}"))
        self.runs.append(run)
        self._sets.setdefault(knobs, []).append(run)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices:
    """The arms over the default, default over default, and what each knob costs."""

    control: Price
    arms: tuple[Price, ...]
    knobs: dict[PricedKnob, Price]


def measure_cost(request: GateRequest, adapters: Adapters, *, attribute: bool) -> CostDocument:
    """Price strict mode in interleaved rounds; with `attribute` each knob and the minimal set."""
    settings = request.settings.cost
    fill = request.settings.determinism.fill_uninitialized_memory
    whole, judged = strict_knobs(fill=fill), judged_arm(fill=fill)
    with Session(request, adapters) as session:
        priced = Priced(session)
        planned = priced.rounds(request, attribute=attribute)
        prices = _prices(priced.by_arm(), judged, settings)
        # where strict mode itself is not repeatable, no smaller set can
        repeats = attribute and priced.equal(whole)
        search = _search(priced, whole, prices.knobs) if repeats else None
        evidence = session.evidence(tuple(priced.runs))
        isolation = session.isolation.described
    charged = next(price for price in prices.arms if price.arm == judged)
    return CostDocument(
        provenance=provenance_of(evidence, isolation),
        rounds=settings.rounds,
        warmup_steps=settings.warmup_steps,
        steps_used=shortest_run(priced.by_arm(), settings),
        order=tuple(run.run.label for run in priced.runs),
        arms=_figures(planned, priced.by_arm(), settings),
        control=prices.control,
        prices=prices.arms,
        judged_arm=judged,
        budget_percent=settings.budget_percent,
        over_budget=settings.exceeded_by(charged.low, measured=charged.state.exceeds_noise),
        attribution=_attribution(whole, prices.knobs, search) if attribute else (),
        minimal=_minimal(priced, whole, search) if search else None,
    )


def _prices(arms: Arms, judged: str, settings: CostSettings) -> Prices:
    control = control_price(arms, DEFAULTS, settings)

    def price(arm: str, *over: str) -> Price:
        return arm_price(arms, arm, over, settings, control)

    fill = price(STRICT_FILL, STRICT)
    toggled = {knob: price(judged, without(knob)) for knob in PricedKnob if without(knob) in arms}
    return Prices(
        control=control,
        arms=(price(STRICT, *DEFAULTS), price(STRICT_FILL, *DEFAULTS), fill),
        knobs={**toggled, PricedKnob.FILL: fill},
    )


def _figures(
    planned: tuple[Arm, ...], arms: Arms, settings: CostSettings
) -> tuple[ArmFigures, ...]:
    """One row for each arm; the two default runs of a round are one arm."""
    both = tuple(run for name in DEFAULTS for run in arms[name])
    rows = [("default", NO_KNOBS, both)]
    rows += [(arm.name, arm.knobs, arms[arm.name]) for arm in planned if arm.name not in DEFAULTS]
    return tuple(arm_figures(name, knob_names(knobs), runs, settings) for name, knobs, runs in rows)


def _search(priced: Priced, whole: KnobSet, prices: dict[PricedKnob, Price]) -> Search:
    present = {knob: price for knob, price in prices.items() if knob in whole}
    return minimal_set(whole, removal_order(present), priced.equal, priced.verify)


def _attribution(
    whole: KnobSet, prices: dict[PricedKnob, Price], search: Search | None
) -> tuple[KnobPrice, ...]:
    return tuple(knob_fate(knob, prices.get(knob), search, on=knob in whole) for knob in PricedKnob)


def _minimal(priced: Priced, whole: KnobSet, search: Search) -> MinimalSet:
    runs = priced.of(search.knobs)
    return MinimalSet(
        knobs=knob_names(search.knobs),
        dropped=tuple(knob.value for knob in search.dropped),
        equal_runs=len(runs),
        verified=search.verified,
        same_bits_as_strict=equal_results(runs[0], priced.of(whole)[0]),
    )


def measure_noise(request: GateRequest, adapters: Adapters, *, runs: int | None) -> NoiseDocument:
    """Rerun the default mode and measure how much its results vary."""
    wanted = request.settings.noise.runs if runs is None else runs
    found, reruns = list[RunEvidence](), list[WeightDistance]()
    with Session(request, adapters) as session:
        for planned in plan_noise(wanted):
            found.append(session.run(planned))
            if len(found) > 1:
                reruns.append(session.weight_distance(found[0].run.label, planned.label))
        reduction, no_gradients = _reduction(session, found[0].run.label)
        evidence = session.evidence(tuple(found))
        isolation = session.isolation.described
    provenance = provenance_of(evidence, isolation)
    metrics, notes = metric_noise(evidence.runs)
    factor, distinct = tolerance_factor(wanted), distinct_results(evidence.runs)
    return NoiseDocument(
        provenance=provenance,
        runs=wanted,
        distinct_results=distinct,
        undetected_share=undetected_share(wanted) if distinct == 1 else None,
        first_diverging_step=_first_diverging_step(request, evidence.runs),
        tolerance_factor=factor,
        metrics=metrics,
        weights=weight_noise(tuple(reruns)),
        reduction=reduction,
        snippet=tolerance_snippet(metrics, wanted, factor, provenance),
        notes=(*notes, *no_gradients),
    )


def _first_diverging_step(request: GateRequest, runs: tuple[RunEvidence, ...]) -> int | None:
    """The earliest step at which any run leaves the first one."""
    compare = request.settings.compare
    names = (runs[0].run.label, "another run")
    steps = (compare_results(runs[0], run, compare, names).first_step for run in runs[1:])
    return min((step for step in steps if step is not None), default=None)


def _reduction(session: Session, label: str) -> tuple[ReductionSpread | None, tuple[str, ...]]:
    """The spread of a run's gradients, or a sentence why there is none."""
    if not session.keeps_gradients(label):
        return None, ("the harness saved no gradients",)
    return session.reduction_spread(label), ()


def provenance_of(evidence: EvidenceSet, isolation: str) -> Provenance:
    """Where a measurement was made: the commit, the settings, the first run's environment."""
    return Provenance(
        commit=evidence.commit,
        changed_files=evidence.changed_files,
        created_at=evidence.created_at,
        settings_digest=evidence.settings_digest,
        training_digest=evidence.training_digest,
        isolation=isolation,
        environment=evidence.runs[0].environment,
    )
