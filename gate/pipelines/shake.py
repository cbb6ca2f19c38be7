"""Two equal runs, then one run for each thing that must not matter, compared with the first.

Nothing is judged by a baseline. A shaken run is isolated as every other training, and nothing of
it is kept: its code knows that it is one.
"""

from __future__ import annotations

from dataclasses import dataclass

from gate.comparison.compare import compare_results
from gate.comparison.differences import Comparison
from gate.comparison.shaken import MAX_TEXT, ReadingLine, ShakenThing, ShakenTraining, ShakeResult
from gate.diagnosis.readings import reading_lines, varied_words
from gate.errors import EvidenceError, GateError, RunError
from gate.evidence.run_evidence import RunEvidence
from gate.pipelines.adapters import Adapters
from gate.pipelines.choice import cards_of, why_not, why_one_order
from gate.pipelines.measurement import provenance_of
from gate.pipelines.runs import Session
from gate.settings.variations import Variation
from gate.system.gpu import GpusSeen
from gate.training.plan import plan_record, plan_shaken
from gate.training.runs import PlannedRun, RunMode, label_of
from gate.verdict.request import GateRequest

PAIR = 2
# a machine that is kept busy is slow, and a start takes a while on any
TIMES_AS_LONG = 10.0
LEAST_SECONDS = 120.0
OUT_OF_BUDGET = "out of budget: --budget leaves no time for another run"


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a call asks for; without a budget all variations are tried."""

    variations: tuple[Variation, ...]
    budget_seconds: float | None = None


def shake(request: GateRequest, adapters: Adapters, asked: Asked) -> ShakenTraining:
    """Train twice, then once for each variation; what differs from the first run depends on it.

    Raises what the runs without a variation raise: a training that fails has no result.
    """
    with Session(request, adapters) as session:
        shaking = _Shaking(session, asked)
        pair = tuple(session.run(planned) for planned in plan_record(PAIR))
        between = _compared(pair[0], pair[1], request)
        repeatable = between.numerically_equal
        things = shaking.things(pair[0]) if repeatable else ()
        runs = pair
        if any(thing.depends for thing in things):
            # one more without a variation: a training that rarely differs must not be taken for one
            # that depends on whatever was varied then
            runs = (*pair, session.run(_plain(len(pair) + 1)))
            between = _compared(pair[0], runs[-1], request)
            repeatable = between.numerically_equal
        evidence = session.evidence(runs)
        isolation = session.isolation.described
    return ShakenTraining(
        provenance=provenance_of(evidence, isolation),
        repeatable=repeatable,
        first=None if repeatable else between.first,
        things=things,
        budget_seconds=asked.budget_seconds,
    )


def _plain(number: int) -> PlannedRun:
    return PlannedRun(label=label_of(RunMode.STRICT, number), mode=RunMode.STRICT)


def _compared(first: RunEvidence, other: RunEvidence, request: GateRequest) -> Comparison:
    names = (first.run.label, other.run.label)
    return compare_results(first, other, request.settings.compare, names)


class _Shaking:
    """The shaken runs of one call, within its budget of time."""

    def __init__(self, session: Session, asked: Asked) -> None:
        self._session = session
        self._asked = asked
        self._began = session.adapters.clock.now()

    def things(self, reference: RunEvidence) -> tuple[ShakenThing, ...]:
        """What came of each variation."""
        gpus = self._session.adapters.gpus() if reference.environment.on_gpu else GpusSeen()
        return tuple(
            self._thing(variation, reference, gpus) for variation in self._asked.variations
        )

    def _thing(self, variation: Variation, reference: RunEvidence, gpus: GpusSeen) -> ShakenThing:
        session, settings = self._session, self._session.request.settings
        cards = cards_of(gpus, session.isolation, session.adapters.host)
        reason = why_not(variation, settings, reference) or why_one_order(variation, cards, gpus)
        if not reason and not self._time_for(reference):
            reason = OUT_OF_BUDGET
        if reason:
            return _thing(variation, ShakeResult.NOT_TRIED, reason=reason)
        try:
            run = session.run(plan_shaken(variation, settings, cards, _most_seconds(reference)))
        except (RunError, EvidenceError) as fault:
            readings = _raised(fault)
            return _thing(variation, ShakeResult.FAILS, reason=fault.message, readings=readings)
        return self._compared(variation, reference, run)

    def _time_for(self, reference: RunEvidence) -> bool:
        budget = self._asked.budget_seconds
        spent = (self._session.adapters.clock.now() - self._began).total_seconds()
        return budget is None or spent + reference.run.wall_seconds <= budget

    def _compared(
        self, variation: Variation, reference: RunEvidence, run: RunEvidence
    ) -> ShakenThing:
        varied, why = varied_words(variation, run)
        comparison = _compared(reference, run, self._session.request)
        if not varied:
            return _thing(variation, ShakeResult.NOT_TRIED, reason=why, run=run)
        if comparison.environment:
            why = f"the run saw another environment: {', '.join(comparison.moved)}"
            return _thing(variation, ShakeResult.NOT_TRIED, reason=why, run=run)
        if comparison.numerically_equal:
            return _thing(variation, ShakeResult.EQUAL, varied=varied, run=run)
        readings = reading_lines(variation, run, comparison.first)
        return _thing(
            variation, ShakeResult.DIFFERS, varied=varied, run=run, readings=readings
        ).model_copy(update={"first": comparison.first})


def _most_seconds(reference: RunEvidence) -> float:
    """How long a shaken run may take: a training can wait for ever where something is varied."""
    return max(LEAST_SECONDS, TIMES_AS_LONG * reference.run.wall_seconds)


def _raised(fault: GateError) -> tuple[ReadingLine, ...]:
    """The line that raised in a run that failed, where it is known."""
    if not isinstance(fault, RunError) or not fault.file:
        return ()
    return (ReadingLine(place=f"{fault.file}:{fault.line}", call="", step=1),)


def _thing(
    variation: Variation,
    result: ShakeResult,
    *,
    varied: str = "",
    reason: str = "",
    readings: tuple[ReadingLine, ...] = (),
    run: RunEvidence | None = None,
) -> ShakenThing:
    return ShakenThing(
        name=variation.name,
        changes=variation.changes,
        varied=varied,
        result=result,
        readings=readings,
        reason=reason[:MAX_TEXT],
        remedy=variation.remedy,
        wall_seconds=None if run is None else run.run.wall_seconds,
    )
