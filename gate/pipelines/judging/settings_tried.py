"""After a difference between runs of one commit: which setting, moved alone, makes them agree.

Nothing here changes an outcome. All runs fit into what the traced runs left of the budget of time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gate.comparison.finiteness import first_not_finite
from gate.diagnosis.trace_window import same_until, window_of
from gate.diagnosis.trial_order import Candidate, candidates
from gate.errors import GateError
from gate.execution.plan import plan_trial
from gate.pipelines.judging.budget import Budget, run_within
from gate.pipelines.judging.comparisons import against_run, repeats_of
from gate.pipelines.judging.explanation import diagnosis_of
from gate.pipelines.runs import Session
from gate.records.determinism.trials import SECOND_FILL, Setting
from gate.records.observed.evidence import EvidenceSet, RunEvidence
from gate.records.observed.trials.tried import (
    CERTAIN_CONTROLS,
    CERTAIN_RUNS,
    TriedSetting,
    TriedSettings,
)
from gate.records.runs import RunMode, Trial
from gate.records.verdict import Outcome
from gate.verdict.facts import Decision

# a training as short as this runs whole: stopping it earlier saves nothing
WHOLE_SECONDS: Final = 10.0
# one thread, or one worker, may well take several times as long; a deadlock would take all there is
MOST_TIMES_AS_LONG: Final = 5.0
Pair = tuple[RunEvidence, RunEvidence]
PLAIN: Final = Candidate(setting=Setting.NOTHING, written="nothing")


def try_settings(
    session: Session, decision: Decision, evidence: EvidenceSet, budget: Budget
) -> TriedSettings | None:
    """What settings say that were moved one at a time; None where there is nothing to try.

    The trace of `evidence` comes first, since it names what the settings can only make likely.
    """
    strict = evidence.runs_of(RunMode.STRICT)
    # a default run that differs, where strict runs agree, is a fault too rare for a few pairs
    apart = [one for one in repeats_of(strict, session.request) if not one.numerically_equal]
    diagnosis = diagnosis_of(decision, evidence)
    if decision.outcome is not Outcome.NONDETERMINISTIC or not apart or diagnosis is None:
        return None
    settings = session.request.settings
    chosen = candidates(diagnosis, strict[0], settings)
    if not chosen:
        return None
    traced = diagnosis.trace is not None and diagnosis.trace.found
    controls = len(strict) - 1 + traced, len(apart) + traced
    last = window_of(apart[0], settings.train.max_steps)[1]
    return _Ladder(session, strict, budget, last, controls).climbed(chosen)


class _Ladder:
    """Pairs of runs, one setting after the other, until one helps for certain.

    `last` is the step at which the runs are known to differ; `controls` are pairs without any
    setting that were compared, and how many of them differ.
    """

    def __init__(
        self,
        session: Session,
        strict: tuple[RunEvidence, ...],
        budget: Budget,
        last: int,
        controls: tuple[int, int],
    ) -> None:
        self._session = session
        self._strict = strict
        self._budget = budget
        self._seconds = min(run.run.wall_seconds for run in strict)
        self._steps = session.request.settings.train.max_steps
        self._last = self._steps if self._seconds <= WHOLE_SECONDS else last
        self._controls = controls

    def climbed(self, chosen: tuple[Candidate, ...]) -> TriedSettings:
        """What was tried, and what there was no time for."""
        found = TriedSettings(pairs=self._controls[0], differing=self._controls[1])
        for place, candidate in enumerate(chosen):
            if not self._fits(self._last):
                names = tuple(one.written for one in chosen[place:])
                return found.model_copy(update={"untried": names})
            tried = self._tried(candidate)
            found = found.model_copy(update={"tried": (*found.tried, tried)})
            found = self._with_controls(found, tried)
            if found.is_certain(tried) and tried.telling:
                break
        return found

    def _fits(self, last: int) -> bool:
        """Whether a pair of runs up to this step fits into the budget, as far as can be told."""
        return not self._budget.used_up and self._budget.left >= 2 * self._expected(last)

    def _expected(self, last: int) -> float:
        start = self._strict[0].first_step_seconds or 0.0
        return min(self._seconds, max(start, self._seconds * last / self._steps))

    def _tried(self, candidate: Candidate) -> TriedSetting:
        one = TriedSetting(setting=candidate.setting, written=candidate.written)
        try:
            first = self._pair(candidate, self._last, 1)
            if not self._equal(*first):
                return one.model_copy(update={"agree": False, "runs": 2})
            one = one.model_copy(
                update={"agree": True, "runs": 2, "slower": self._slower(first, self._last)}
            )
            return self._confirmed(candidate, one, first) if self._fits(self._steps) else one
        except GateError as fault:
            return one.model_copy(update={"problem": fault.message[:1000]})

    def _confirmed(self, candidate: Candidate, one: TriedSetting, first: Pair) -> TriedSetting:
        """Two runs more, to the end of the training; of a fill with another byte."""
        filled = candidate.setting is Setting.HEAP_FILL
        again = replace(candidate, fill=SECOND_FILL) if filled else candidate
        second = self._pair(again, self._steps, CERTAIN_RUNS - 1)
        same = same_until(first[0], second[0], self._last)
        if self._last == self._steps:
            same = self._equal(first[0], second[0])
        follows: bool | None = not same if filled else None
        if candidate.setting is Setting.TORCH_FILL:
            # NaN where there was none: it came from memory that torch filled
            follows = self._turns_to_nan(second[0]) or None
        agree = self._equal(*second) and (same or filled)
        return one.model_copy(
            update={
                "agree": agree,
                "runs": CERTAIN_RUNS,
                "follows": follows if agree else None,
                "slower": self._slower((*first, *second), self._last) if agree else None,
            }
        )

    def _with_controls(self, found: TriedSettings, tried: TriedSetting) -> TriedSettings:
        """Pairs more without any setting, where only these are missing to be certain."""
        enough = tried.helps and tried.runs >= CERTAIN_RUNS
        while enough and self._fits(self._last):
            pairs, differing = found.without(tried)
            if pairs != differing or pairs >= CERTAIN_CONTROLS:
                break
            try:
                apart = not self._equal(*self._pair(PLAIN, self._last, 1))
            except GateError:
                break
            found = found.model_copy(
                update={"pairs": found.pairs + 1, "differing": found.differing + apart}
            )
        return found

    def _pair(
        self, candidate: Candidate, last: int, number: int
    ) -> tuple[RunEvidence, RunEvidence]:
        return self._run(candidate, last, number), self._run(candidate, last, number + 1)

    def _run(self, candidate: Candidate, last: int, number: int) -> RunEvidence:
        most = MOST_TIMES_AS_LONG * self._expected(last) + WHOLE_SECONDS
        trial = Trial(
            setting=candidate.setting,
            knob=candidate.knob,
            word=candidate.word,
            fill=candidate.fill,
            last=last,
            # the second of a pair may find less than it needs, and is then stopped
            max_seconds=max(0.1, min(self._budget.left, most)),
        )
        planned, clock = plan_trial(number, trial), self._session.adapters.clock
        return run_within(self._budget, clock, lambda: self._session.run(planned))

    def _equal(self, one: RunEvidence, other: RunEvidence) -> bool:
        return against_run(one, other, self._session.request).numerically_equal

    def _slower(self, runs: tuple[RunEvidence, ...], last: int) -> float | None:
        """The fastest run to the training's end over the fastest strict run; None without one."""
        whole = runs if last == self._steps else runs[2:]
        seconds = min((run.run.wall_seconds for run in whole), default=0.0)
        return round(seconds / self._seconds, 3) if seconds and self._seconds else None

    def _turns_to_nan(self, run: RunEvidence) -> bool:
        allowed = self._session.request.settings.compare.allow_not_finite
        return first_not_finite((run,), allowed) is not None and not first_not_finite(
            self._strict[:1], allowed
        )
