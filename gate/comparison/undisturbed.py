"""Which steps ran while no other run of the call did: only those are timed."""

from __future__ import annotations

from itertools import accumulate

from gate.evidence.run_evidence import RunEvidence
from gate.evidence.timings import Timings
from gate.settings.measuring import CostSettings
from gate.training.runs import RunRecord

Span = tuple[float, float]


def timed_alone(
    runs: tuple[RunEvidence, ...], among: tuple[RunEvidence, ...], settings: CostSettings
) -> tuple[RunEvidence, ...]:
    """The same runs with the timings of only those steps beside which no run of `among` went.

    Where enough are left, nor are those timed beside which one only started: an interpreter that
    imports uses the same memory and caches. When steps were made is known from the clock at the end
    of the first, and their durations.
    """
    return tuple(_alone(run, [one for one in among if one is not run], settings) for run in runs)


def _alone(run: RunEvidence, others: list[RunEvidence], settings: CostSettings) -> RunEvidence:
    here = [one for one in others if _is_of_this_call(one.run) and _is_of_this_call(run.run)]
    going = [span for span in map(_going, here) if _overlap(span, _going(run))]
    starting = [span for span in map(_starting, here) if _overlap(span, _going(run))]
    if not going and not starting:
        return run
    if run.first_step_clock_seconds is None:
        # without a clock nothing says when its steps were made
        return run.model_copy(update={"timings": Timings()}) if going else run
    timings = _outside(run, [*going, *starting])
    if len(timings) < settings.warmup_steps + settings.min_steps:
        timings = _outside(run, going)
    return run.model_copy(update={"timings": timings})


def _outside(run: RunEvidence, beside: list[Span]) -> Timings:
    if not run.timings:
        # a training of one step has no duration between two steps
        return run.timings
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


def _going(run: RunEvidence) -> Span:
    begun = run.run.clock_seconds
    return begun, begun + run.run.wall_seconds


def _starting(run: RunEvidence) -> Span:
    """From the start of its process until it waited, or was let go."""
    started = run.run.started_seconds or run.run.clock_seconds
    return started, min(started + run.ready_seconds, run.run.clock_seconds)


def _overlap(one: Span, other: Span) -> bool:
    return max(one[0], other[0]) < min(one[1], other[1])
