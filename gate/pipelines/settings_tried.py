"""After runs of one commit differ: finds the setting that, changed alone, makes them agree.

Nothing here changes an outcome. All runs have to fit into the time that the traced runs left of the
budget.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from gate.comparison.checks import first_not_finite
from gate.comparison.differences import Comparison
from gate.diagnosis.setting_trials import Candidate, candidates
from gate.diagnosis.trace_window import reach_of, same_thing, same_until
from gate.errors import GateError
from gate.evidence.run_evidence import RunEvidence
from gate.evidence.trace import (
    CERTAIN_CONTROLS,
    CERTAIN_RUNS,
    TriedSetting,
    TriedSettings,
    runs_needed,
)
from gate.pipelines.case import ClosedCase
from gate.pipelines.comparisons import Budget, against_run, run_within
from gate.pipelines.trainings import Trainings
from gate.settings.variations import SECOND_FILL, Setting
from gate.training.plan import plan_trial
from gate.training.runs import Trial
from gate.verdict.verdict import Outcome

# a training this short runs to its end: stopping it earlier saves nothing
WHOLE_SECONDS: Final = 10.0
# one thread or one worker may take several times as long, but a deadlock would use up the budget
MOST_TIMES_AS_LONG: Final = 5.0
# a fault so rare that more runs are needed is not worth the time to be certain
MOST_EQUAL_RUNS: Final = 12
Pair = tuple[RunEvidence, RunEvidence]
PLAIN: Final = Candidate(setting=Setting.NOTHING, written="nothing")


def try_settings(trainings: Trainings, closed: ClosedCase, budget: Budget) -> TriedSettings | None:
    """Try settings one at a time and return the results; None if there is nothing to try.

    The trace is read first: it proves what settings can only make likely.
    """
    strict, outcome = closed.case.strict, closed.decision.outcome
    # if only a default run differs, the fault is too rare to show in a few pairs of runs
    apart = [repeat for repeat in closed.case.repeats if not repeat.numerically_equal]
    diagnosis = closed.diagnosis
    if outcome is not Outcome.NONDETERMINISTIC or not apart or diagnosis is None:
        return None
    settings = closed.case.request.settings
    chosen = candidates(diagnosis, strict[0], settings)
    if not chosen:
        return None
    traced = diagnosis.trace is not None and diagnosis.trace.names_a_call
    # two traced runs with a call that differs count as one more pair
    controls = len(strict) - 1 + traced, len(apart) + traced
    return _Ladder(trainings, strict, budget, apart[0], controls).climbed(chosen)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Made:
    """The result for a setting, and a reference run that further runs with it must equal."""

    said: TriedSetting
    candidate: Candidate
    reference: RunEvidence | None = None


class _Ladder:
    """Pairs of runs, one setting after the other, until one setting certainly helps.

    `apart` is the known difference of the runs. `controls` counts the compared pairs without any
    setting, and how many pairs differ.
    """

    def __init__(
        self,
        trainings: Trainings,
        strict: tuple[RunEvidence, ...],
        budget: Budget,
        apart: Comparison,
        controls: tuple[int, int],
    ) -> None:
        self._trainings = trainings
        self._settings = trainings.prepared.request.settings
        self._strict = strict
        self._budget = budget
        self._seconds = min(run.run.wall_seconds for run in strict)
        self._steps = max(1, len(strict[0].steps))
        self._first = apart.first
        reach = reach_of(apart, strict)
        short = self._seconds <= WHOLE_SECONDS
        self._end = None if short else reach.end(strict[0])
        self._last = self._steps if self._end is None else reach.last
        self._controls = controls

    def climbed(self, chosen: tuple[Candidate, ...]) -> TriedSettings:
        """Return what was tried, and what was left for lack of time."""
        tried = TriedSettings(pairs=self._controls[0], differing=self._controls[1])
        for place, candidate in enumerate(chosen):
            if not self._fits(self._last):
                names = tuple(setting.written for setting in chosen[place:])
                return tried.model_copy(update={"untried": names})
            made = self._tried(candidate)
            tried = self._made_sure(_with(tried, made.said), made)
            last = tried.tried[-1]
            # the search ends with the first setting that certainly helps
            if tried.is_certain(last) and last.telling:
                break
        return tried

    def _fits(self, last: int, runs: int = 2) -> bool:
        """Estimate whether `runs` runs up to this step fit into the budget."""
        return not self._budget.used_up and self._budget.left >= runs * self._expected(last)

    def _expected(self, last: int) -> float:
        # an early end saves steps, but no run can be shorter than its start
        start = self._strict[0].first_step_seconds or 0.0
        return min(self._seconds, max(start, self._seconds * last / self._steps))

    def _tried(self, candidate: Candidate) -> _Made:
        """Make a pair with this setting and, if it is equal, a pair to the training's end."""
        said = TriedSetting(setting=candidate.setting, written=candidate.written)
        try:
            first = self._pair(candidate, 1)
            agree = self._agree(*first)
            if agree is None:
                # the runs ended before the point at which they could have differed
                said = said.model_copy(update={"problem": self._not_reached()})
                return _Made(said=said, candidate=candidate)
            said = said.model_copy(update={"agree": agree, "runs": 2})
            if not agree:
                return _Made(said=said, candidate=candidate)
            slower = self._slower(first, whole=self._end is None)
            said = said.model_copy(update={"slower": slower})
            if not self._fits(self._steps):
                return _Made(said=said, candidate=candidate, reference=first[0])
            return self._confirmed(candidate, said, first)
        except GateError as fault:
            said = said.model_copy(update={"agree": None, "problem": fault.message[:1000]})
            return _Made(said=said, candidate=candidate)

    def _confirmed(self, candidate: Candidate, said: TriedSetting, first: Pair) -> _Made:
        """Make two more runs to the end of the training; for a fill, with another byte."""
        # a result that changes with the byte was made from memory that nothing wrote
        filled = candidate.setting is Setting.HEAP_FILL
        again = replace(candidate, fill=SECOND_FILL) if filled else candidate
        second = self._pair(again, CERTAIN_RUNS - 1, whole=True)
        same = same_until(first[0], second[0], self._last)
        if self._end is None:
            same = self._agree(first[0], second[0]) is True
        elif self._first is not None:
            same = same and same_thing(self._first, first[0], second[0]) is not False
        follows: bool | None = not same if filled else None
        if candidate.setting is Setting.TORCH_FILL:
            # NaN where there was none before: it comes from the memory that torch filled
            follows = self._turns_to_nan(second[0]) or None
        equal = self._agree(*second)
        if equal is None:
            return _Made(said=said, candidate=candidate)
        agree = equal and (same or filled)
        slower = self._slower((*(first if self._end is None else ()), *second), whole=True)
        update = {
            "agree": agree,
            "runs": CERTAIN_RUNS,
            "follows": follows if agree else None,
            "slower": slower if agree else None,
        }
        said = said.model_copy(update=update)
        return _Made(said=said, candidate=again, reference=second[0] if agree else None)

    def _made_sure(self, tried: TriedSettings, made: _Made) -> TriedSettings:
        """Make more runs with and without the setting, until chance hardly explains it."""
        said = made.said
        while said.helps and made.reference is not None and not tried.is_certain(said):
            pairs, differing = tried.without(said)
            try:
                # equal runs prove nothing until enough pairs without the setting have been compared
                if pairs < CERTAIN_CONTROLS:
                    if said.runs < CERTAIN_RUNS or not self._fits(self._last):
                        break
                    apart = self._agree(*self._pair(PLAIN, tried.pairs + 1))
                    if apart is None:
                        break
                    counts = {"pairs": tried.pairs + 1, "differing": tried.differing + (not apart)}
                    tried = tried.model_copy(update=counts)
                    continue
                needed = runs_needed(pairs, differing)
                if needed > MOST_EQUAL_RUNS or not self._fits(self._last, needed - said.runs):
                    break
                again = self._run(made.candidate, said.runs + 1)
                equal = self._alike(made.reference, again)
            except GateError:
                break
            if equal is None:
                break
            said = said.model_copy(update={"agree": equal, "runs": said.runs + 1})
            if not equal:
                said = said.model_copy(update={"follows": None, "slower": None})
            tried = _with(tried.model_copy(update={"tried": tried.tried[:-1]}), said)
        return tried

    def _pair(self, candidate: Candidate, number: int, *, whole: bool = False) -> Pair:
        run = self._run(candidate, number, whole=whole)
        return run, self._run(candidate, number + 1, whole=whole)

    def _run(self, candidate: Candidate, number: int, *, whole: bool = False) -> RunEvidence:
        last = self._steps if whole else self._last
        most = MOST_TIMES_AS_LONG * self._expected(last) + WHOLE_SECONDS
        trial = Trial(
            setting=candidate.setting,
            knob=candidate.knob,
            word=candidate.word,
            fill=candidate.fill,
            end=None if whole else self._end,
            # the second run of a pair may find less time than it needs, and is then stopped
            max_seconds=max(0.1, min(self._budget.left, most)),
        )
        planned, clock = plan_trial(number, trial), self._trainings.prepared.adapters.clock
        return run_within(self._budget, clock, lambda: self._trainings.run(planned))

    def _agree(self, left: RunEvidence, right: RunEvidence) -> bool | None:
        """Decide whether two runs of equal length agree, including on what differed before.

        None if that was not compared: then the other comparisons prove nothing.
        """
        compared = against_run(left, right, self._settings)
        if compared.differs:
            return False
        if self._first is None:
            return compared.numerically_equal
        return same_thing(self._first, left, right)

    def _alike(self, whole: RunEvidence, again: RunEvidence) -> bool | None:
        """Decide the same for a whole run and one that may have ended earlier."""
        if self._end is None:
            return self._agree(whole, again)
        same = same_until(whole, again, self._last)
        if self._first is None or not same:
            return same
        return same_thing(self._first, whole, again)

    def _not_reached(self) -> str:
        name = self._first.name if self._first is not None else "what differs"
        return f"the runs ended before {name} was written"[:1000]

    def _slower(self, runs: tuple[RunEvidence, ...], *, whole: bool) -> float | None:
        """Return the fastest whole run's time over the fastest strict run's; None without one."""
        seconds = min((run.run.wall_seconds for run in runs), default=0.0)
        return round(seconds / self._seconds, 3) if whole and seconds and self._seconds else None

    def _turns_to_nan(self, run: RunEvidence) -> bool:
        allowed = self._settings.compare.allow_not_finite
        return first_not_finite((run,), allowed) is not None and not first_not_finite(
            self._strict[:1], allowed
        )


def _with(tried: TriedSettings, said: TriedSetting) -> TriedSettings:
    return tried.model_copy(update={"tried": (*tried.tried, said)})
