"""Which results are compared, why a result is as it is, and when the time for more runs ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from gate.baseline.entry import BaselineEntry
from gate.baseline.select import key_place
from gate.comparison.compare import (
    compare_environments,
    compare_results,
    on_one_cpu_thread,
)
from gate.comparison.differences import Comparison, EnvironmentChange
from gate.comparison.resumed_results import compare_first_part, compare_resumed
from gate.diagnosis.diagnosis import CodePlace, Diagnosis, ResumeResult, ResumeState
from gate.diagnosis.first_divergence import diagnose_drift, diagnose_repeat
from gate.diagnosis.fitting_lines import with_typed_numbers
from gate.diagnosis.growth import growth_of
from gate.diagnosis.resume_causes import causes_of
from gate.diagnosis.setting_trials import threads_at, with_tried
from gate.diagnosis.suspects import KnownLines
from gate.diagnosis.touched_lines import (
    ran_before_nan,
    shown_change,
    unchanged,
)
from gate.diagnosis.trace_window import with_trace
from gate.errors import GateError
from gate.evidence.observations import ResumeAttempt, ResumeFault, SourceKind
from gate.evidence.run_evidence import EvidenceSet, RunEvidence
from gate.evidence.trace import ShownChange
from gate.settings.gate_settings import ComparisonSettings, GateSettings
from gate.settings.train_sections import DiagnosisSettings
from gate.system.clock import Clock
from gate.training.runs import Commit, RunMode, label_of
from gate.verdict.facts import Decision, agree
from gate.verdict.override_findings import changed_seeds, suspected_seeds, suspected_settings
from gate.verdict.reasons import concluded_class
from gate.verdict.request import GateRequest
from gate.verdict.sources import changed_precision, suspected_sources
from gate.verdict.verdict import DRIFTS, Outcome, led_by_settings

LEAST_SECONDS: Final = 1.0
# below a minute of runs, most of the time is Python's start; a diagnosis gets a minute anyway
SHORT_TRAINING_SECONDS: Final = 60.0


class Budget:
    """The wall-clock seconds left for a diagnosis; by default as many as the call's runs took.

    `skipped` planned runs that the call did not make count with the mean time of a run.
    """

    def __init__(
        self, settings: DiagnosisSettings, runs: tuple[RunEvidence, ...], skipped: int = 0
    ) -> None:
        spent = sum(run.run.wall_seconds for run in runs)
        # a call that stopped early saved this time, and the diagnosis may use it
        spent += skipped * spent / max(1, len(runs))
        self.left = settings.budget_seconds or max(spent, SHORT_TRAINING_SECONDS)

    @property
    def used_up(self) -> bool:
        """Whether less than `LEAST_SECONDS` is left, too little for a run."""
        return self.left < LEAST_SECONDS

    def spend(self, seconds: float) -> None:
        """Subtract the seconds of one run."""
        self.left -= seconds


def run_within(budget: Budget, clock: Clock, run: Callable[[], RunEvidence]) -> RunEvidence:
    """Make a run and charge its time to the budget, also when it fails.

    Raises the error of the run.
    """
    began = clock.now()
    try:
        made = run()
    except GateError:
        # a failed run leaves no record of its time; add a second, since the clock counts whole ones
        budget.spend((clock.now() - began).total_seconds() + 1)
        raise
    budget.spend(made.run.wall_seconds)
    return made


def repeats_of(runs: tuple[RunEvidence, ...], settings: GateSettings) -> tuple[Comparison, ...]:
    """Return the comparisons of the first run with each other one."""
    first, *others = runs
    return tuple(against_run(first, run, settings) for run in others)


def alone(run: RunEvidence) -> Comparison:
    """Return the empty comparison that stands for a single run: nothing was compared."""
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
    """Return the first comparison that differs, else the first with another environment.

    If none is such, return the first.
    """
    apart = (repeat for repeat in repeats if not repeat.numerically_equal)
    moved = (repeat for repeat in repeats if repeat.environment)
    return next(apart, next(moved, repeats[0]))


def against_run(expected: RunEvidence, run: RunEvidence, settings: GateSettings) -> Comparison:
    """Compare two runs, with their labels as names."""
    names = (expected.run.label, run.run.label)
    return compare_results(expected, run, settings.compare, names)


def separated(
    nearest: BaselineEntry | None, run: RunEvidence, settings: GateSettings
) -> tuple[EnvironmentChange, ...]:
    """Return the environment parts that separate `nearest` from the run, in the key's order.

    `nearest` is the closest entry that cannot judge the run. Empty if it is None.
    """
    if nearest is None:
        return ()
    comparable = settings.compare.comparable_environment
    changes = compare_environments(nearest.environment, run.environment, comparable)
    return tuple(sorted(changes, key=lambda change: key_place(change.part)))


# the outcomes whose difference the pull request itself may have caused
ITS_OWN = frozenset((Outcome.CODE_DRIFT, Outcome.NOT_COMPARABLE, Outcome.NONDETERMINISTIC))


def beside_the_difference(
    request: GateRequest,
    evidence: EvidenceSet,
    decision: Decision,
    diagnosis: Diagnosis | None,
    *,
    not_finite: bool = False,
) -> tuple[ShownChange | None, bool]:
    """Return the changed lines to show beside the difference.

    The second value is true if the change leaves the lines that the diagnosis names as they were.
    """
    folder = request.repository_path(request.settings.train.workdir)
    if not_finite:
        return ran_before_nan(evidence.change, evidence.trace, folder), False
    # if the environment moved as well, a changed setting of the run still comes from the change
    own = decision.outcome in ITS_OWN or led_by_settings(decision.outcome, diagnosis)
    if diagnosis is None or decision.passes or not own:
        return None, False
    drift = decision.outcome is not Outcome.NONDETERMINISTIC
    sources = [source for run in evidence.runs_of(RunMode.STRICT) for source in run.sources]
    opened = {source.call for source in sources if source.kind is SourceKind.OPENED}
    schedules = [
        CodePlace.known(source.file, source.line)
        for source in sources
        if source.kind is SourceKind.SCHEDULE
    ]
    shown = shown_change(
        evidence.change, diagnosis, opened, folder, drift=drift, schedules=schedules
    )
    named = diagnosis.likely[0].code_places if diagnosis.likely else ()
    return shown, unchanged(evidence.change, named, folder)


def diagnosis_of(decision: Decision, evidence: EvidenceSet) -> Diagnosis | None:
    """Return why the deciding comparison differs; None for a pass.

    A drift that passes by its level gets a diagnosis too: it takes no further run, and the place
    where the drift begins is worth knowing.
    """
    # `statistical` and above let a drift pass, which is still worth explaining
    by_level = decision.outcome in DRIFTS
    if decision.decided is None or (decision.passes and not by_level):
        return None
    drift = decision.outcome is not Outcome.NONDETERMINISTIC
    diagnosis = with_trace(_recorded(decision, evidence), evidence.trace, drift=drift)
    if diagnosis is None:
        return None
    update = {
        "cause_class": concluded_class(diagnosis, decision.outcome),
        "growth": growth_of(decision.decided),
    }
    diagnosis = with_typed_numbers(diagnosis.model_copy(update=update), evidence.change)
    # settings are tried only between runs of one commit
    if evidence.tried is None or decision.outcome is not Outcome.NONDETERMINISTIC:
        return diagnosis
    strict = evidence.runs_of(RunMode.STRICT)[0]
    alive = threads_at(strict, diagnosis.first_step)
    return with_tried(diagnosis, evidence.tried, threads_alive=alive)


def _recorded(decision: Decision, evidence: EvidenceSet) -> Diagnosis | None:
    """Return the diagnosis from the fingerprints and lines that every run records."""
    if decision.decided is None:
        return None
    strict = evidence.runs_of(RunMode.STRICT)
    if decision.outcome is not Outcome.NONDETERMINISTIC:
        base = next(iter(evidence.runs_of(RunMode.STRICT, Commit.BASE)), None)
        # without runs of the base commit, seeds are known from the traced runs
        traced = () if evidence.trace is None else evidence.trace.changed_seeds
        known = KnownLines(
            changed_seeds=changed_seeds(strict[0], base) or traced,
            sources=changed_precision(strict[0], base),
        )
        return diagnose_drift(decision.decided, known)
    alone = all(map(on_one_cpu_thread, strict))
    # one CPU thread leaves no order of operations open, so an overridden setting is no cause
    settings = () if alone else suspected_settings(strict)
    known = KnownLines(
        overrides=(*settings, *suspected_seeds(strict)),
        sources=suspected_sources(strict),
        children=(*strict[0].children, *strict[0].weaker_children),
    )
    return diagnose_repeat(decision.decided, known, one_cpu_thread=alone)


NOT_MADE: Final = ResumeFault(
    message="the job that ran made no interrupted and no resumed run",
    hint="Let both jobs use the same repro-gate version and settings.",
)


NOT_KILLED: Final = ResumeFault(
    message="the job that ran killed no run inside the save (resume.kill_while_saving)",
    hint=NOT_MADE.hint,
)


def resume_result(
    evidence: EvidenceSet, whole: RunEvidence, settings: GateSettings, *, due: bool
) -> ResumeResult | None:
    """Return what the interrupted and the resumed run show; None if this call makes neither.

    If `due` is true, missing runs are a fault.
    """
    resume, attempt = settings.resume, evidence.resume
    if resume is None or not (due or attempt is not None):
        return None
    if attempt is None:
        attempt = ResumeAttempt(
            checkpoint=resume.checkpoint, at_step=resume.at_step, fault=NOT_MADE
        )
    near = partial(agree, settings=settings)
    result = _attempted(evidence, whole, attempt, settings.compare, near)
    if result.compared is not None and result.state is not ResumeState.NOT_REPEATED:
        unkilled = resume.kill_while_saving and not attempt.kills
        return _unchecked(attempt, whole, NOT_KILLED) if unkilled else result
    return result


def kept_resume(evidence: EvidenceSet, whole: RunEvidence) -> ResumeResult | None:
    """Return the same of evidence without settings: no tolerance applies; None without a resume."""
    if evidence.resume is None:
        return None
    return _attempted(
        evidence, whole, evidence.resume, ComparisonSettings(), lambda pair: pair.numerically_equal
    )


def _unchecked(
    attempt: ResumeAttempt, whole: RunEvidence, fault: ResumeFault | None
) -> ResumeResult:
    return ResumeResult(
        state=ResumeState.NOT_CHECKED,
        checkpoint=attempt.checkpoint,
        step=attempt.step,
        steps=len(whole.steps),
        files=attempt.files,
        size_bytes=attempt.size_bytes,
        sha256=attempt.sha256,
        fault=fault,
        kills=attempt.kills,
    )


def _attempted(
    evidence: EvidenceSet,
    whole: RunEvidence,
    attempt: ResumeAttempt,
    compare: ComparisonSettings,
    near: Callable[[Comparison], bool],
) -> ResumeResult:
    """Compare the interrupted and the resumed run; `near` says which results count as the same."""
    unchecked = _unchecked(attempt, whole, attempt.fault)
    interrupted, resumed = (
        _run_of(evidence, mode) for mode in (RunMode.INTERRUPTED, RunMode.RESUMED)
    )
    if interrupted is not None:
        # compare only the steps before the interruption; the later ones are another training's
        before = compare_first_part(whole, interrupted, attempt.step, compare)
        if before.differs:
            update = {"state": ResumeState.NOT_REPEATED, "compared": before, "fault": None}
            return unchecked.model_copy(update=update)
    if attempt.fault is not None or interrupted is None or resumed is None:
        return unchecked.model_copy(update={"fault": attempt.fault or NOT_MADE})
    compared = compare_resumed(whole, resumed, attempt.step, compare)
    state = ResumeState.DIFFERS
    if compared.numerically_equal:
        state = ResumeState.EXACT
    elif near(compared):
        state = ResumeState.WITHIN
    causes = causes_of(whole, interrupted, resumed, compared, attempt.step)
    return unchecked.model_copy(update={"state": state, "compared": compared, "causes": causes})


def _run_of(evidence: EvidenceSet, mode: RunMode) -> RunEvidence | None:
    label = label_of(mode, 1)
    return next((run for run in evidence.runs_of(mode) if run.run.label == label), None)
