"""The measuring pipelines: the cost of determinism, the noise of the default mode, tolerances."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from gate.comparison.calibration import (
    calibrate,
    calibrated_block,
    metric_noise,
    tolerance_snippet,
    undetected_share,
)
from gate.comparison.compare import compare_results, distinct_results, equal_results
from gate.comparison.cost_arms import (
    Arms,
    Search,
    arm_figures,
    arm_price,
    control_price,
    knob_fate,
    minimal_set,
    removal_order,
    shortest_run,
)
from gate.comparison.measurements import (
    ArmFigures,
    CalibrationDocument,
    CostDocument,
    KnobPrice,
    MinimalSet,
    NoiseDocument,
    Price,
    ReductionSpread,
    WeightDistance,
    provenance_of,
)
from gate.comparison.tolerances import tolerance_factor
from gate.comparison.weight_noise import weight_noise
from gate.data.data_sets import same_data
from gate.errors import EvidenceError, SettingsError
from gate.evidence.evidence_folder import MANIFEST_NAME
from gate.evidence.run_evidence import EvidenceSet, RunEvidence
from gate.pipelines.adapters import Adapters
from gate.pipelines.imported_evidence import read_evidence_apart
from gate.pipelines.prepared import prepare
from gate.pipelines.real_all_reduce import all_reduce_spread, refuse_nodes
from gate.pipelines.trainings import EndedRuns, Trainings
from gate.settings.knobs import NO_KNOBS, KnobSet, PricedKnob, knob_names, strict_knobs
from gate.settings.levels import EVERY, FINAL, CostSettings, steps_of
from gate.settings.load import training_digest
from gate.settings.train_sections import with_ranks
from gate.system.files.port import Files
from gate.training.plan import (
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
from gate.training.runs import RunMode
from gate.verdict import blind_spots
from gate.verdict.request import GateRequest

SAME_RANKS = (
    "metrics and weights are of reruns of train.command as it stands: nothing in it says how many "
    "ranks it starts"
)
PAIR = 2
DEFAULTS = (DEFAULT_A, DEFAULT_B)


class Priced:
    """All runs of a cost call in the order they were made, by arm and by knob set."""

    def __init__(self, trainings: Trainings) -> None:
        """Make no run before `rounds`."""
        self._trainings = trainings
        self._labels = count(1)
        self.runs: list[RunEvidence] = []
        self.arms: dict[str, list[RunEvidence]] = {}
        self._sets: dict[KnobSet, list[RunEvidence]] = {}

    def rounds(self, request: GateRequest, *, attribute: bool) -> tuple[Arm, ...]:
        """Run every arm of every round, and return the arms.

        The first run shows which knobs can have an effect here.
        """
        fill = request.settings.determinism.fill_uninitialized_memory
        # only a run shows the device of the training, and knobs of GPUs cost nothing on a CPU
        first = self._trainings.run(first_run())
        on_gpu = first.environment.on_gpu
        toggled = applicable_knobs(on_gpu=on_gpu) if attribute else ()
        arms = cost_arms(fill=fill, toggled=toggled)
        knobs = {arm.name: arm.knobs for arm in arms}
        # the run that showed the device is a default run, so it counts as the first of the plan
        self._note(DEFAULT_A, NO_KNOBS, first)
        # skip the first planned run: `first` above was it
        for name, planned in plan_rounds(arms, request.settings.cost.rounds)[1:]:
            self._note(name, knobs[name], self._trainings.run(planned))
        return arms

    def _note(self, name: str, knobs: KnobSet, run: RunEvidence) -> None:
        self.runs.append(run)
        self.arms.setdefault(name, []).append(run)
        self._sets.setdefault(knobs, []).append(run)

    def by_arm(self) -> dict[str, tuple[RunEvidence, ...]]:
        """Return the runs of each arm, one for each round."""
        return {name: tuple(runs) for name, runs in self.arms.items()}

    def of(self, knobs: KnobSet) -> tuple[RunEvidence, ...]:
        """Return every run of a knob set."""
        return tuple(self._sets.get(knobs, ()))

    def equal(self, knobs: KnobSet) -> bool:
        """Decide whether all runs of a knob set agree; make runs until there are two."""
        # runs of the rounds count too, so an arm that already ran twice costs no further run
        while len(self.of(knobs)) < PAIR:
            self._once_more(knobs)
        return distinct_results(self.of(knobs)) == 1

    def verify(self, knobs: KnobSet) -> bool:
        """Decide whether one more run of a knob set agrees with all earlier ones."""
        self._once_more(knobs)
        return distinct_results(self.of(knobs)) == 1

    def _once_more(self, knobs: KnobSet) -> None:
        arm = Arm(name="reduced", knobs=knobs)
        run = self._trainings.run(arm.run(f"reduced-{next(self._labels)}"))
        self.runs.append(run)
        self._sets.setdefault(knobs, []).append(run)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices:
    """The price of each arm over the default, of the default over itself, and of each knob."""

    control: Price
    arms: tuple[Price, ...]
    knobs: dict[PricedKnob, Price]


def measure_cost(request: GateRequest, adapters: Adapters, *, attribute: bool) -> CostDocument:
    """Price strict mode in interleaved rounds.

    With `attribute`, also price each knob and find the minimal sufficient set.
    """
    settings = request.settings.cost
    fill = request.settings.determinism.fill_uninitialized_memory
    whole, judged = strict_knobs(fill=fill), judged_arm(fill=fill)
    with prepare(request, adapters) as prepared:
        trainings = Trainings(prepared)
        priced = Priced(trainings)
        planned = priced.rounds(request, attribute=attribute)
        prices = _prices(priced.by_arm(), judged, settings)
        # if strict mode itself does not repeat, no smaller set of knobs can
        repeats = attribute and priced.equal(whole)
        search = _search(priced, whole, prices.knobs) if repeats else None
        evidence = trainings.ended.evidence(tuple(priced.runs))
        isolation = trainings.ended.isolation.described
    # only the arm that the settings actually use is judged against the budget
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
    """Return one row for each arm; the two default runs of a round count as one arm."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedRanks:
    """How many ranks all-reduce the kept gradients, and how often."""

    ranks: int
    repetitions: int


def measure_noise(
    request: GateRequest, adapters: Adapters, *, runs: int | None, asked: AskedRanks | None = None
) -> NoiseDocument:
    """Rerun the default mode and measure how much its results vary.

    With `asked`, the reruns start that many ranks, if train.command contains their number.
    """
    if asked is not None:
        refuse_nodes(request.settings, "noise --ranks")
    runs_asked = request.settings.noise.runs if runs is None else runs
    reference_runs, reruns = list[RunEvidence](), list[WeightDistance]()
    train = request.settings.train
    command = None if asked is None else with_ranks(train.command, asked.ranks)
    all_reduce, spread_notes = None, tuple[str, ...]()
    with prepare(request, adapters) as prepared:
        trainings = Trainings(prepared)
        for planned in plan_noise(runs_asked, command):
            reference_runs.append(trainings.run(planned))
            if len(reference_runs) > 1:
                # measured now: the values of the run are removed afterwards, to save disk space
                reruns.append(
                    trainings.ended.weight_distance(reference_runs[0].run.label, planned.label)
                )
        reduction, no_gradients = _reduction(trainings.ended, reference_runs[0].run.label)
        if asked is not None:
            all_reduce, spread_notes = all_reduce_spread(trainings, asked.ranks, asked.repetitions)
            spread_notes += () if command else (SAME_RANKS,)
        evidence = trainings.ended.evidence(tuple(reference_runs))
        isolation = trainings.ended.isolation.described
    provenance = provenance_of(evidence, isolation)
    metrics, notes = metric_noise(evidence.runs)
    factor, distinct = tolerance_factor(runs_asked), distinct_results(evidence.runs)
    return NoiseDocument(
        provenance=provenance,
        runs=runs_asked,
        distinct_results=distinct,
        # if all runs are equal, the document reports how rare a fault could still be
        undetected_share=undetected_share(runs_asked) if distinct == 1 else None,
        first_diverging_step=_first_diverging_step(request, evidence.runs),
        tolerance_factor=factor,
        metrics=metrics,
        weights=weight_noise(tuple(reruns)),
        reduction=reduction,
        all_reduce=all_reduce,
        snippet=tolerance_snippet(metrics, runs_asked, factor, provenance),
        notes=(*notes, *no_gradients, *spread_notes),
    )


def _first_diverging_step(request: GateRequest, runs: tuple[RunEvidence, ...]) -> int | None:
    """Return the earliest step at which any run differs from the first one, or None."""
    compare = request.settings.compare
    names = (runs[0].run.label, "another run")
    steps = (compare_results(runs[0], run, compare, names).first_step for run in runs[1:])
    return min((step for step in steps if step is not None), default=None)


def _reduction(ended: EndedRuns, label: str) -> tuple[ReductionSpread | None, tuple[str, ...]]:
    """Return the spread of a run's gradients, or a sentence that says why there is none."""
    if not ended.keeps_gradients(label):
        return None, ("the harness saved no gradients",)
    return ended.reduction_spread(label), ()


MAX_FOLDERS = 100
LEAST_RESULTS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """The results to derive tolerances from, described in `words`.

    `evidence` and `isolation` are those of the first measurement.
    """

    runs: tuple[RunEvidence, ...]
    words: str
    evidence: EvidenceSet
    isolation: str


def checked_ranges(ranges: tuple[str, ...]) -> tuple[str, ...]:
    """Return the ranges of steps as given.

    Raises `SettingsError` for an invalid range, and for one that would decide the steps of another.
    """
    taken: list[range] = []
    for place, text in enumerate(ranges):
        try:
            steps = steps_of(text)
        except ValueError as error:
            raise SettingsError(
                f"--steps {error}", hint="Give it once for each range: --steps 1-10 --steps 11-20."
            ) from error
        # the first matching tolerance decides, so a later range would never be used
        if text == EVERY and place < len(ranges) - 1:
            raise SettingsError(
                f"--steps {text} takes every step that is left",
                hint=f"Give {EVERY} last: the first tolerance that fits decides.",
            )
        if text == FINAL and FINAL in ranges[:place]:
            raise SettingsError(f"--steps {FINAL} is given twice", hint="Give it once.")
        if steps is not None and any(
            steps.start < other.stop and other.start < steps.stop for other in taken
        ):
            raise SettingsError(
                f"--steps {text} overlaps a range before it", hint="Let no step be in two ranges."
            )
        taken += [steps] if steps is not None else []
    return ranges


def rerun(request: GateRequest, adapters: Adapters, runs: int | None) -> Measured:
    """Rerun the default mode and return its results."""
    runs_asked = request.settings.noise.runs if runs is None else runs
    with prepare(request, adapters) as prepared:
        trainings = Trainings(prepared)
        # tolerances need only metrics, so no weights are kept
        planned = tuple(replace(run, keep_values=False) for run in plan_noise(runs_asked))
        evidence = trainings.ended.evidence(tuple(trainings.run(run) for run in planned))
        isolation = trainings.ended.isolation.described
    words = f"{runs_asked} runs in default mode"
    return Measured(runs=evidence.runs, words=words, evidence=evidence, isolation=isolation)


def from_folders(request: GateRequest, files: Files, folders: tuple[Path, ...]) -> Measured:
    """Return results that were measured elsewhere.

    Each folder is an evidence folder, or an output folder that contains one. Of a folder with
    strict runs only the first run counts, because the others repeat it. Of several such folders of
    one environment, only the first folder counts. Without strict runs, every default run counts.
    """
    if len(folders) > MAX_FOLDERS:
        raise SettingsError(
            f"--from was given {len(folders)} times, the limit is {MAX_FOLDERS}",
            hint="A few runs of each environment are enough.",
        )
    sets = [_read(request, files, folder) for folder in folders]
    for place, evidence in enumerate(sets):
        # a copy is no second measurement, and would make the spread look smaller
        if evidence in sets[:place]:
            raise EvidenceError(
                f"{folders[place]}: is a copy of {folders[sets.index(evidence)]}",
                hint="Give each measurement once.",
            )
        # a difference between two codes would be taken for noise and widen the tolerance
        if evidence.snapshot_digest != sets[0].snapshot_digest:
            raise EvidenceError(
                f"{folders[place]}: different code was trained there than in {folders[0]}",
                hint="Use the same commit everywhere: code changes are not noise.",
            )
        if not same_data(evidence.data, sets[0].data):
            raise EvidenceError(
                f"{folders[place]}: the declared data there differs from that in {folders[0]}",
                hint="Use the same data everywhere: a change of the data is not noise.",
            )
    strict = [run for kept in sets for run in kept.runs_of(RunMode.STRICT)[:1]]
    default = [run for kept in sets for run in kept.runs_of(RunMode.DEFAULT)]
    runs = tuple(_one_each(strict) if strict else default)
    if strict and len(strict) < len(sets):
        raise EvidenceError(
            "some of the folders have strict runs and some have only default runs",
            hint="Measure every environment with the same command.",
        )
    if len(runs) < LEAST_RESULTS:
        raise EvidenceError(
            f"there are {len(runs)} results to compare, and two are needed",
            hint="Strict runs from one environment are identical and count once: give folders "
            "of several environments, or of `repro-gate noise`.",
        )
    mode = "strict" if strict else "default"
    words = f"{len(runs)} runs in {mode} mode, from {len(folders)} folders of evidence"
    return Measured(runs=runs, words=words, evidence=sets[0], isolation="as reported there")


def _read(request: GateRequest, files: Files, given: Path) -> EvidenceSet:
    inside = given / "evidence"
    folder = inside if files.exists(inside / MANIFEST_NAME) else given
    if not files.exists(folder / MANIFEST_NAME):
        raise EvidenceError(
            f"there is no evidence in {given}",
            hint="Name the folder that --out was given, or the `evidence` folder in it.",
        )
    evidence = read_evidence_apart(files, folder)
    # other settings make another experiment, whose results are not comparable
    if evidence.training_digest != training_digest(request.settings):
        raise EvidenceError(
            f"{given}: was made under other training settings than {request.config_name} has",
            hint="Another command, seed or number of steps is another experiment.",
        )
    if not evidence.runs:
        raise EvidenceError(f"{given}: holds no run", hint="Run the measurement again.")
    return evidence


def _one_each(runs: list[RunEvidence]) -> list[RunEvidence]:
    """Return the first run of each environment: bitwise repeats add no information."""
    chosen: list[RunEvidence] = []
    for run in runs:
        if all(run.environment.moved(other.environment) for other in chosen):
            chosen.append(run)
    return chosen


def calibration(
    request: GateRequest, measured: Measured, ranges: tuple[str, ...], confidence: float
) -> CalibrationDocument:
    """Derive the tolerances; the notes name the faults that they could not catch."""
    runs = measured.runs
    calibrated, notes = calibrate(runs, ranges, confidence, request.settings.compare.tolerances)
    uses = tuple(tolerance.use for tolerance in calibrated)
    blind = tuple(finding.message for finding in blind_spots.tolerances(uses, runs[0]))
    provenance = provenance_of(measured.evidence, measured.isolation)
    environments = len(_one_each(list(runs)))
    where = "one environment" if environments == 1 else f"{environments} environments"
    words = f"repro-gate baseline calibrate: {measured.words}, {where}"
    return CalibrationDocument(
        provenance=provenance,
        measured=measured.words,
        runs=len(runs),
        environments=environments,
        confidence=confidence,
        tolerances=calibrated,
        block=calibrated_block(calibrated, words, provenance),
        notes=(*notes, *blind),
    )
