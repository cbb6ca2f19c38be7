"""What is compared with what, why a result is what it is, and when no more is run."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Final

from gate.baseline.entry import BaselineEntry
from gate.baseline.select import key_place
from gate.comparison.checks import never_passes
from gate.comparison.compare import (
    compare_environments,
    compare_results,
    equal_results,
    missed_share,
    on_one_cpu_thread,
)
from gate.comparison.differences import BASELINE_SIDE, Comparison, EnvironmentChange, EventKind
from gate.diagnosis.diagnosis import Diagnosis
from gate.diagnosis.first_divergence import diagnose_drift, diagnose_repeat
from gate.diagnosis.growth import growth_of
from gate.diagnosis.suspects import Known
from gate.diagnosis.touched_lines import (
    ran_before_nan,
    shown_change,
    unchanged,
    with_typed_numbers,
)
from gate.diagnosis.trace_window import with_trace
from gate.diagnosis.trials import threads_at, with_tried
from gate.errors import GateError
from gate.evidence.observations import SourceKind
from gate.evidence.run_evidence import EvidenceSet, RunEvidence
from gate.evidence.trace import ShownChange
from gate.settings.train_sections import DiagnosisSettings
from gate.system.clock import Clock
from gate.training.plan import plan_gate, plan_operator_audit, plan_seeds
from gate.training.runs import Commit, PlannedRun, RunMode
from gate.verdict.blind_spots import rare_faults
from gate.verdict.causes import concluded_class
from gate.verdict.facts import Decision, Facts
from gate.verdict.overrides import changed_seeds, suspected_seeds, suspected_settings
from gate.verdict.request import GateRequest
from gate.verdict.sources import changed_precision, suspected_sources
from gate.verdict.verdict import EqualRuns, NotRun, Outcome, Part, WhyNotRun

LEAST_SECONDS: Final = 1.0
# where all runs together take less, most of it is the start of Python: a few runs may take as long
SHORT_TRAINING_SECONDS: Final = 60.0


class Budget:
    """Seconds of wall-clock time that are left; by default as many as the call's own runs took.

    So many runs that were `skipped` count as well: their time may go into the diagnosis.
    """

    def __init__(
        self, settings: DiagnosisSettings, runs: tuple[RunEvidence, ...], skipped: int = 0
    ) -> None:
        spent = sum(run.run.wall_seconds for run in runs)
        spent += skipped * spent / max(1, len(runs))
        self.left = settings.budget_seconds or max(spent, SHORT_TRAINING_SECONDS)

    @property
    def used_up(self) -> bool:
        """Whether no run fits in any more."""
        return self.left < LEAST_SECONDS

    def spend(self, seconds: float) -> None:
        """A run took this long."""
        self.left -= seconds


def run_within(budget: Budget, clock: Clock, run: Callable[[], RunEvidence]) -> RunEvidence:
    """A run that the budget pays for, also where it fails; raises what the run raises."""
    began = clock.now()
    try:
        made = run()
    except GateError:
        # of a run that failed there is no record; the clock counts whole seconds
        budget.spend((clock.now() - began).total_seconds() + 1)
        raise
    budget.spend(made.run.wall_seconds)
    return made


def repeats_of(runs: tuple[RunEvidence, ...], request: GateRequest) -> tuple[Comparison, ...]:
    """The first run of one kind against each other one."""
    first, *others = runs
    return tuple(against_run(first, run, request) for run in others)


def first_two(runs: tuple[RunEvidence, ...], request: GateRequest) -> Comparison | None:
    """The first two runs of one kind against each other; None where there are not two."""
    return next(iter(repeats_of(runs[:2], request)), None) if runs else None


def alone(run: RunEvidence) -> Comparison:
    """Of a run that no other was made beside: nothing was compared."""
    return Comparison(
        expected=run.run.label,
        observed=run.run.label,
        metrics=(),
        series=(),
        tensors=(),
        step_faults=(),
        environment=(),
        compared_points=0,
        compared_steps=0,
        compared_tensors=0,
        steps_expected=len(run.steps),
        steps_observed=len(run.steps),
    )


def most_telling(repeats: tuple[Comparison, ...]) -> Comparison:
    """The first that differs, else the first whose environment moved, else the first."""
    apart = (one for one in repeats if not one.numerically_equal)
    moved = (one for one in repeats if one.environment)
    return next(apart, next(moved, repeats[0]))


def against_run(expected: RunEvidence, run: RunEvidence, request: GateRequest) -> Comparison:
    """Two runs, named by their labels."""
    names = (expected.run.label, run.run.label)
    return compare_results(expected, run, request.settings.compare, names)


def against_entry(
    entry: BaselineEntry | None,
    run: RunEvidence,
    request: GateRequest,
    side: str = BASELINE_SIDE,
) -> Comparison | None:
    """A run against an entry, which reports call `side`; None where there is no entry."""
    if entry is None:
        return None
    return compare_results(entry, run, request.settings.compare, (side, run.run.label))


def separated(
    nearest: BaselineEntry | None, run: RunEvidence, request: GateRequest
) -> tuple[EnvironmentChange, ...]:
    """What separates an entry that cannot judge the run, in the order of the key."""
    if nearest is None:
        return ()
    comparable = request.settings.compare.comparable_environment
    changes = compare_environments(nearest.environment, run.environment, comparable)
    return tuple(sorted(changes, key=lambda change: key_place(change.part)))


RARE = 0.1
# where the difference may be the change's own
ITS_OWN = frozenset((Outcome.CODE_DRIFT, Outcome.NOT_COMPARABLE, Outcome.NONDETERMINISTIC))


def rare_faults_of(facts: Facts) -> tuple[str, ...]:
    """What the equal runs leave open, where they are equal at all."""
    if not facts.repeat.numerically_equal:
        return ()
    strict = facts.strict_runs
    runs = strict + len(facts.like_strict)
    every = missed_share(runs, RARE) if facts.like_strict else None
    return rare_faults((strict, runs), missed_share(strict, RARE), every)


def equal_runs_of(facts: Facts) -> EqualRuns | None:
    """The equal runs of one and the same work, and the share of rare faults that they miss."""
    if not facts.repeat.numerically_equal or any(
        not other.numerically_equal for other in facts.like_strict
    ):
        return None
    runs = facts.strict_runs + len(facts.like_strict)
    return EqualRuns(runs=runs, missed=round(missed_share(runs, RARE), 4))


def beside_the_difference(
    request: GateRequest,
    evidence: EvidenceSet,
    decision: Decision,
    diagnosis: Diagnosis | None,
    *,
    not_finite: bool = False,
) -> tuple[ShownChange | None, bool]:
    """What of the change belongs beside the difference; whether the named line is none of it."""
    folder = request.repository_path(request.settings.train.workdir)
    if not_finite:
        return ran_before_nan(evidence.change, evidence.trace, folder), False
    if diagnosis is None or not _may_be_its_own(decision, diagnosis):
        return None, False
    drift = decision.outcome is not Outcome.NONDETERMINISTIC
    opened = {
        source.call
        for run in evidence.runs_of(RunMode.STRICT)
        for source in run.sources
        if source.kind is SourceKind.OPENED
    }
    shown = shown_change(evidence.change, diagnosis, opened, folder, drift=drift)
    named = diagnosis.likely[0].code_place if diagnosis.likely else None
    return shown, unchanged(evidence.change, named, folder)


def _may_be_its_own(decision: Decision, diagnosis: Diagnosis) -> bool:
    """Where the environment moved as well, a setting of the run is still the change's."""
    led_by_settings = diagnosis.kind is not EventKind.ENVIRONMENT
    moved = decision.outcome is Outcome.ENVIRONMENT_DRIFT
    return decision.outcome in ITS_OWN or (moved and led_by_settings)


def diagnosis_of(decision: Decision, evidence: EvidenceSet) -> Diagnosis | None:
    """Why the comparison that decided came out as it did, where that is not a pass."""
    if decision.decided is None or decision.passes:
        return None
    found = with_trace(_recorded(decision, evidence), evidence.trace)
    if found is None:
        return None
    update = {
        "cause_class": concluded_class(found, decision.outcome),
        "growth": growth_of(decision.decided),
    }
    found = with_typed_numbers(found.model_copy(update=update), evidence.change)
    if evidence.tried is None or decision.outcome is not Outcome.NONDETERMINISTIC:
        return found
    strict = evidence.runs_of(RunMode.STRICT)[0]
    alive = threads_at(strict, found.first_step)
    return with_tried(found, evidence.tried, threads_alive=alive)


def _recorded(decision: Decision, evidence: EvidenceSet) -> Diagnosis | None:
    """What fingerprints and lines say that every run records."""
    if decision.decided is None:
        return None
    strict = evidence.runs_of(RunMode.STRICT)
    if decision.outcome is not Outcome.NONDETERMINISTIC:
        base = next(iter(evidence.runs_of(RunMode.STRICT, Commit.BASE)), None)
        traced = () if evidence.trace is None else evidence.trace.changed_seeds
        known = Known(
            changed_seeds=changed_seeds(strict[0], base) or traced,
            sources=changed_precision(strict[0], base),
        )
        return diagnose_drift(decision.decided, known)
    alone = all(map(on_one_cpu_thread, strict))
    # one thread leaves no order open, whatever is overridden
    settings = () if alone else suspected_settings(strict)
    known = Known(
        overrides=(*settings, *suspected_seeds(strict)),
        sources=suspected_sources(strict),
        children=(*strict[0].children, *strict[0].weaker_children),
    )
    return diagnose_repeat(decision.decided, known, one_cpu_thread=alone)


Made = tuple[RunEvidence, ...]


def strict_of_head(runs: Made) -> Made:
    """The strict runs of the commit under test."""
    wanted = (Commit.HEAD, RunMode.STRICT)
    return tuple(run for run in runs if (run.run.commit, run.run.mode) == wanted)


def differ(runs: Made, request: GateRequest) -> bool:
    """Whether two strict runs of the commit under test differ: then this is the outcome."""
    strict = strict_of_head(runs)
    # most are equal, which is seen without looking for where they part
    return any(
        not equal_results(strict[0], run)
        and not against_run(strict[0], run, request).numerically_equal
        for run in strict[1:]
    )


def never_pass(runs: Made, request: GateRequest) -> bool:
    """Whether a strict run of the commit has a number that never passes: the outcome too."""
    return never_passes(strict_of_head(runs), request.settings.compare.allow_not_finite)


def made_until_they_differ(
    turns: Generator[Made], planned: tuple[PlannedRun, ...], request: GateRequest
) -> Made:
    """The runs of each turn, in the order of the plan; no further turn once the outcome is known.

    That is when two strict runs differ, or one holds a number that never passes.
    """
    made: dict[str, RunEvidence] = {}
    with closing(turns):
        for turn in turns:
            made |= {run.run.label: run for run in turn}
            known = tuple(made.values())
            if len(made) < len(planned) and (differ(known, request) or never_pass(known, request)):
                break
    return tuple(made[run.label] for run in planned if run.label in made)


def not_run(
    request: GateRequest, evidence: EvidenceSet, *, failed_audit: bool
) -> tuple[NotRun, ...]:
    """What this call could have run and did not, because of its settings or of what it found.

    `failed_audit`: the operator audit was tried.
    """
    unpriced = _missing(plan_gate(request.strict_runs, priced=True), evidence, RunMode.DEFAULT)
    found = [] if request.priced else [(Part.DEFAULT_RUNS, WhyNotRun.NOT_PRICED, unpriced)]
    apart = differ(evidence.runs, request)
    if apart or never_pass(evidence.runs, request):
        why = WhyNotRun.RUNS_DIFFER if apart else WhyNotRun.NOT_FINITE
        planned = plan_gate(request.strict_runs, priced=request.priced)
        asked = request.settings.operator_audit and not failed_audit
        audit = (plan_operator_audit(),) if asked else ()
        seeds = plan_seeds(request.settings) if not evidence.seeded else ()
        stopped = (
            (Part.STRICT_RUNS, _missing(planned, evidence, RunMode.STRICT)),
            (Part.DEFAULT_RUNS, _missing(planned, evidence, RunMode.DEFAULT)),
            (Part.SEEDS, len(seeds)),
            (Part.OPERATOR_AUDIT, _missing(audit, evidence, RunMode.AUDIT)),
        )
        found += [(part, why, runs) for part, runs in stopped]
    return tuple(NotRun(part=part, why=why, runs=runs) for part, why, runs in found if runs)


def _missing(planned: tuple[PlannedRun, ...], evidence: EvidenceSet, mode: RunMode) -> int:
    labels = {run.run.label for run in evidence.runs}
    return sum(run.mode is mode and run.label not in labels for run in planned)
