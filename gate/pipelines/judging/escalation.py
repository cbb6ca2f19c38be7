"""After a difference: two runs with an operator trace, and what parts them.

Nothing here changes an outcome. Whatever goes wrong becomes a sentence of the diagnosis.
"""

from __future__ import annotations

from dataclasses import dataclass

from gate.diagnosis.touched_lines import with_changed_lines
from gate.diagnosis.trace_window import same_until, window_of
from gate.diagnosis.trace_words import not_found
from gate.diagnosis.traces import compare_traces
from gate.errors import GateError, RepositoryError
from gate.execution.plan import plan_trace
from gate.pipelines.adapters import Adapters
from gate.pipelines.judging.budget import Budget, run_within
from gate.pipelines.runs import Session
from gate.records.comparison import Comparison
from gate.records.observed.evidence import RunEvidence
from gate.records.observed.trace import Traces
from gate.records.observed.traced import MAX_SEEDS, ChangedLines, TraceFinding
from gate.records.request import GateRequest
from gate.records.runs import Commit, PlannedRun, RunMode, TraceWindow
from gate.records.verdict import DRIFTS, Outcome
from gate.verdict.facts import Decision
from gate.verdict.overrides import changed_seeds

# the base commit is run again for these, whatever the baseline was recorded from; with the data
# that moved it has nothing to show
AGAINST_THE_BASE = (DRIFTS - {Outcome.DATA_DRIFT}) | {Outcome.NOT_COMPARABLE}
OTHER_RESULT = (
    "a traced run gave another result than the run without a trace, so nothing is claimed from it"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Traced:
    """A run that was traced, and the run without a trace that it repeats, where there is one."""

    run: RunEvidence
    traces: Traces
    plain: RunEvidence | None


def lines_of_the_change(request: GateRequest, adapters: Adapters) -> tuple[ChangedLines, ...]:
    """The hunks between base and head, to be read before any training; none where git cannot."""
    if request.base_commit is None or not request.settings.diagnosis.escalate:
        return ()
    try:
        head = request.commit or adapters.git.resolve("HEAD")
        return adapters.git.changed_lines(request.base_commit, head)
    except RepositoryError:
        return ()


def escalate(
    session: Session,
    decision: Decision,
    runs: tuple[RunEvidence, ...],
    changes: tuple[ChangedLines, ...],
    budget: Budget,
) -> TraceFinding | None:
    """What two traced runs say of the difference that decided; None where there is none to trace.

    Two runs of one commit that differ are repeated; a drift is traced against the base commit.
    """
    compared, drift = decision.decided, decision.outcome in AGAINST_THE_BASE
    if not session.request.settings.diagnosis.escalate or compared is None or decision.passes:
        return None
    request = session.request
    if drift and not (request.base_commit and request.settings.policy.run_base_on_drift):
        return None
    if not drift and (
        decision.outcome is not Outcome.NONDETERMINISTIC or compared.numerically_equal
    ):
        return None
    try:
        return _Escalation(session, compared, runs, budget, drift=drift).found(changes)
    except GateError as fault:
        return not_found(f"not found: a traced run failed: {fault.message}"[:1000])


class _Escalation:
    """Two traced runs around the first step that differs, within the budget of time."""

    def __init__(
        self,
        session: Session,
        compared: Comparison,
        runs: tuple[RunEvidence, ...],
        budget: Budget,
        *,
        drift: bool,
    ) -> None:
        settings = session.request.settings
        self._session = session
        self._drift = drift
        self._runs = runs
        self._first, self._last = window_of(compared, settings.train.max_steps)
        # up to here the runs were equal, so that a traced one has to be as well
        self._equal = self._last if drift else (compared.first_step or self._last + 1) - 1
        self._budget = budget

    def found(self, changes: tuple[ChangedLines, ...]) -> TraceFinding:
        """The finding; raises what a run raises that fails or takes too long."""
        one = self._run("traced-1", Commit.BASE if self._drift else Commit.HEAD)
        other = self._run("traced-2", Commit.HEAD) if one is not None else None
        if one is None or other is None:
            return not_found("not found within the budget of time (diagnosis.budget_seconds)")
        for traced in (one, other):
            if traced.plain and not same_until(traced.plain, traced.run, self._equal):
                return not_found(OTHER_RESULT)
        finding = compare_traces(one.traces, other.traces, drift=self._drift)
        if not self._drift:
            return finding
        trace = next((trace for trace in other.traces if trace.rank == finding.rank), None)
        folder = self._session.request.repository_path(self._session.request.settings.train.workdir)
        seeds = changed_seeds(other.run, one.run)[:MAX_SEEDS]
        finding = finding.model_copy(update={"changed_seeds": seeds})
        return with_changed_lines(finding, changes, trace, folder)

    def _run(self, label: str, commit: Commit) -> _Traced | None:
        """A traced run; None where the budget is used up, by it or before it."""
        if self._budget.used_up:
            return None
        window = TraceWindow(
            first=self._first, last=self._last, max_seconds=self._budget.left, lines=self._drift
        )
        own = self._session.own_environments and commit is Commit.BASE
        environment = Commit.BASE if own else Commit.HEAD
        planned = plan_trace(label, window, commit, environment)
        clock = self._session.adapters.clock
        run = run_within(self._budget, clock, lambda: self._session.run(planned))
        return _Traced(run=run, traces=self._session.traces(), plain=self._plain(planned))

    def _plain(self, planned: PlannedRun) -> RunEvidence | None:
        wanted = (RunMode.STRICT, planned.commit, planned.environment)
        return next(
            (
                run
                for run in self._runs
                if (run.run.mode, run.run.commit, run.run.environment) == wanted
            ),
            None,
        )
