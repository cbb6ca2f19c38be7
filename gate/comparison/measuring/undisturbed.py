"""Which steps ran while no other run of the call did: only those are timed."""

from __future__ import annotations

from itertools import accumulate

from gate.records.observed.columns.timings import Timings
from gate.records.observed.evidence import RunEvidence
from gate.records.runs import RunRecord

Span = tuple[float, float]


def timed_alone(
    runs: tuple[RunEvidence, ...], among: tuple[RunEvidence, ...]
) -> tuple[RunEvidence, ...]:
    """The same runs with the timings of only those steps beside which no run of `among` went.

    When steps were made is known from the clock at the end of the first, and their durations.
    """
    return tuple(_alone(run, [one.run for one in among if one is not run]) for run in runs)


def _alone(run: RunEvidence, others: list[RunRecord]) -> RunEvidence:
    here = [one for one in others if _is_of_this_call(one) and _is_of_this_call(run.run)]
    beside = [span for span in map(_span, here) if _overlap(span, _span(run.run))]
    if not beside:
        return run
    # without a clock nothing says when its steps were made
    timings = Timings() if run.first_step_clock_seconds is None else _outside(run, beside)
    return run.model_copy(update={"timings": timings})


def _outside(run: RunEvidence, beside: list[Span]) -> Timings:
    durations = list(map(sum, zip(run.timings.seconds, run.timings.harness_seconds, strict=True)))
    ends = list(accumulate(durations[1:], initial=run.first_step_clock_seconds or 0.0))
    steps = zip(run.timings.rows(), ends, durations, strict=True)
    return Timings(
        row
        for row, end, seconds in steps
        if not any(_overlap((end - seconds, end), span) for span in beside)
    )


def _is_of_this_call(run: RunRecord) -> bool:
    # the clock of an earlier call is another
    return bool(run.clock_seconds) and not run.reused


def _span(run: RunRecord) -> Span:
    return run.clock_seconds, run.clock_seconds + run.wall_seconds


def _overlap(one: Span, other: Span) -> bool:
    return one[0] < other[1] and other[0] < one[1]
