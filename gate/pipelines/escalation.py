"""After a difference: two runs with an operator trace that locate where the results diverge.

Nothing here changes an outcome. Every failure becomes a sentence of the diagnosis.
"""

from __future__ import annotations

from dataclasses import dataclass

from gate.comparison.differences import Comparison, EventKind, NotFinite
from gate.comparison.first_difference import kind_of_metric, numbering_of
from gate.diagnosis.other_processes import other_processes
from gate.diagnosis.touched_lines import all_that_matters, named_by_change, with_changed_lines
from gate.diagnosis.trace_window import (
    Reach,
    behind_equal_gradients,
    optimizers_of,
    reach_of,
    same_thing,
    same_until,
    shown_by,
    what_explains,
)
from gate.diagnosis.trace_words import not_found
from gate.diagnosis.traces import compare_traces, first_not_finite_call
from gate.errors import GateError, RunTimeoutError
from gate.evidence.run_evidence import EvidenceSet, RunEvidence
from gate.evidence.trace import MAX_SEEDS, NoTrace, TraceFinding, Traces
from gate.pipelines.case import ClosedCase
from gate.pipelines.comparisons import Budget, run_within
from gate.pipelines.trainings import Trainings
from gate.system.git.changes import Change
from gate.training.plan import plan_trace
from gate.training.runs import Commit, EarlyEnd, RunMode, TraceWindow
from gate.verdict.facts import Decision
from gate.verdict.override_findings import changed_seeds
from gate.verdict.request import GateRequest
from gate.verdict.verdict import DRIFTS, Outcome

# The gate runs the base commit again for these outcomes, even if the baseline was recorded from
# another commit. With data that moved, the base commit has nothing to show.
AGAINST_THE_BASE = (DRIFTS - {Outcome.DATA_DRIFT}) | {Outcome.NOT_COMPARABLE}
OTHER_RESULT = "a traced run gave a different result than the same run without a trace"
NO_TIME = "the traced runs did not finish in the time that they had (diagnosis.budget_seconds)"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Traced:
    """A traced run and, in `plain`, the untraced run of the same commit; None without one."""

    run: RunEvidence
    traces: Traces
    plain: RunEvidence | None


def escalate(
    trainings: Trainings, closed: ClosedCase, change: Change | None, budget: Budget
) -> TraceFinding | None:
    """Trace two runs and return the finding on the decisive difference; None if none applies.

    Two runs of one commit that differ are repeated. A drift is traced against the base commit. If
    settings or the model's structure already explain a drift, and the change contains their line, a
    trace adds nothing.
    """
    decision, request = closed.decision, closed.case.request
    compared, drift = decision.decided, decision.outcome in AGAINST_THE_BASE
    if compared is None or decision.passes or not _to_be_traced(request, decision):
        return None
    diagnosis = closed.diagnosis
    folder = request.repository_path(request.settings.train.workdir)
    explained = what_explains(diagnosis) if drift else ""
    # no trace if the change itself shows the line: that saves two trainings
    if explained and named_by_change(change, diagnosis, folder):
        return not_found(f"{explained} the difference, so nothing was traced", NoTrace.EXPLAINED)
    try:
        return _Escalation(trainings, compared, closed.evidence.runs, budget, drift=drift).finding(
            change
        )
    except RunTimeoutError:
        return not_found(NO_TIME, NoTrace.BUDGET)
    except GateError as fault:
        return not_found(f"a traced run failed: {fault.message}"[:1000], NoTrace.FAILED)


def trace_not_finite(
    trainings: Trainings,
    number: NotFinite,
    evidence: EvidenceSet,
    change: Change | None,
    budget: Budget,
) -> TraceFinding | None:
    """Trace head and find the call that makes its first number that is not finite.

    One traced run suffices. None if the whole change is one part, which a report shows anyway.
    """
    prepared = trainings.prepared
    request = prepared.request
    run = next(
        (run_evidence for run_evidence in evidence.runs if run_evidence.run.label == number.run),
        None,
    )
    escalates = request.settings.diagnosis.escalate and not budget.used_up
    if run is None or change is None or all_that_matters(change) or not escalates:
        return None
    planned = plan_trace("traced-1", _window_of(number, run, budget), Commit.HEAD, Commit.HEAD)
    try:
        run_within(budget, prepared.adapters.clock, lambda: trainings.run(planned))
    except GateError:
        # the outcome is already an error, with or without this explanation
        return None
    traces = trainings.ended.traces()
    finding = first_not_finite_call(traces, infinite=number.infinite)
    trace = next((trace for trace in traces if trace.rank == finding.rank), None)
    folder = request.repository_path(request.settings.train.workdir)
    return with_changed_lines(finding, change.hunks, trace, folder)


def _window_of(number: NotFinite, run: RunEvidence, budget: Budget) -> TraceWindow:
    """Return the step of the number and the step before it, whose update may have made it.

    For a number in a tensor, return the last steps.
    """
    total = max(1, len(run.steps))
    step = numbering_of(run.metrics, total).step(number.name, number.step) or total
    written = number.step is not None and kind_of_metric(number.name) is not EventKind.LOSS
    end = EarlyEnd(step=step, optimizers=optimizers_of(run), written=written)
    return TraceWindow(
        first=max(1, step - 1),
        max_seconds=budget.left,
        end=end if step < total else None,
        lines=True,
    )


def _to_be_traced(request: GateRequest, decision: Decision) -> bool:
    """Decide whether the settings allow traced runs and both sides can be run."""
    if not request.settings.diagnosis.escalate:
        return False
    if decision.outcome in AGAINST_THE_BASE:
        # the entry is of other settings, so a base commit under these would not show its result
        base = bool(request.base_commit) and not decision.other_training
        return base and request.settings.policy.run_base_on_drift
    compared = decision.decided
    apart = compared is not None and not compared.numerically_equal
    return apart and decision.outcome is Outcome.NONDETERMINISTIC


class _Escalation:
    """Two traced runs around the first step that differs, within the budget of time."""

    def __init__(
        self,
        trainings: Trainings,
        compared: Comparison,
        runs: tuple[RunEvidence, ...],
        budget: Budget,
        *,
        drift: bool,
    ) -> None:
        self._trainings = trainings
        self._drift = drift
        self._runs = runs
        self._compared = compared
        self._reach: Reach = reach_of(compared, runs)
        # up to this step the runs were equal, so a traced run has to be equal as well
        apart = compared.first_step or self._reach.last + 1
        self._equal = self._reach.last if drift else apart - 1
        self._budget = budget

    def finding(self, change: Change | None) -> TraceFinding:
        """Trace both runs and return the finding.

        Raises the error of a run that fails or takes too long.
        """
        traced = self._run("traced-1", Commit.BASE if self._drift else Commit.HEAD)
        other = self._run("traced-2", Commit.HEAD) if traced is not None else None
        if traced is None or other is None:
            return not_found(NO_TIME, NoTrace.BUDGET)
        # a traced run with another result took another path, so nothing may be claimed from it
        if not (self._repeats(traced) and self._repeats(other)):
            return not_found(OTHER_RESULT, NoTrace.OTHER_RESULT)
        first = self._compared.first
        kept = first is not None and first.kind is EventKind.STATE
        logged = self._reach.written or kept
        finding = compare_traces(
            traced.traces,
            other.traces,
            drift=self._drift,
            logged=logged,
            same_gradients=behind_equal_gradients(self._compared),
        )
        if first is not None and not finding.names_a_call and not self._come_so_far(traced, other):
            why = f"the traced runs ended before {first.name} was written"
            return not_found(why[:1000], NoTrace.NOT_REACHED)
        if not self._drift:
            return finding
        trace = next((trace for trace in other.traces if trace.rank == finding.rank), None)
        request = self._trainings.prepared.request
        folder = request.repository_path(request.settings.train.workdir)
        # both commits ran here, so a seed that changed between them is seen
        seeds = changed_seeds(other.run, traced.run)[:MAX_SEEDS]
        finding = finding.model_copy(update={"changed_seeds": seeds})
        hunks = change.hunks if change is not None else ()
        others = other_processes((traced.run, other.run))
        return with_changed_lines(finding, hunks, trace, folder, others=others)

    def _repeats(self, traced: _Traced) -> bool:
        """Decide whether a traced run equals its untraced run, as far as both are known."""
        if traced.plain is None:
            return True
        first = self._compared.first
        # a metric can differ while all parameters are equal; for a drift it must be compared too
        checked = first if self._drift and self._reach.written else None
        if checked is not None and same_thing(checked, traced.plain, traced.run) is False:
            return False
        return same_until(traced.plain, traced.run, self._equal)

    def _come_so_far(self, *traced: _Traced) -> bool:
        """Decide whether a traced run reached the difference.

        Only a metric can be missing. All other quantities are recorded by the end of their step.
        """
        first = self._compared.first
        if first is None or not self._reach.written:
            return True
        return any(shown_by(first, run_evidence.run) is not None for run_evidence in traced)

    def _run(self, label: str, commit: Commit) -> _Traced | None:
        """Make a traced run; return None if no time is left before it."""
        if self._budget.used_up:
            return None
        own = self._trainings.prepared.own_environments and commit is Commit.BASE
        environment = Commit.BASE if own else Commit.HEAD
        plain = self._plain(commit, environment)
        window = TraceWindow(
            first=self._reach.first,
            max_seconds=self._budget.left,
            end=self._reach.end(plain or self._runs[0]),
            lines=self._drift,
        )
        planned = plan_trace(label, window, commit, environment)
        clock = self._trainings.prepared.adapters.clock
        run = run_within(self._budget, clock, lambda: self._trainings.run(planned))
        return _Traced(run=run, traces=self._trainings.ended.traces(), plain=plain)

    def _plain(self, commit: Commit, environment: Commit) -> RunEvidence | None:
        key = (RunMode.STRICT, commit, environment)
        return next(
            (
                run
                for run in self._runs
                if (run.run.mode, run.run.commit, run.run.environment) == key
            ),
            None,
        )
