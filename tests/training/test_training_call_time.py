"""Where a call's time went: at least one run going, or the gate alone."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate.training.timeline import CallTime, OwnWork, covered

SECONDS = st.integers(0, 1000).map(float)
STRETCHES = st.lists(st.tuples(SECONDS, SECONDS).map(lambda pair: (min(pair), max(pair))))


class Hand:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> datetime:
        return datetime(2026, 11, 2, tzinfo=UTC)

    def seconds(self) -> float:
        return self.at


def test_what_no_run_takes_is_the_gates_own() -> None:
    clock = Hand()
    call = CallTime(clock)
    with call.own(OwnWork.PREPARING):
        clock.at += 2
    begun = call.seconds
    clock.at += 10
    call.ran("default-1", begun_seconds=begun, wall_seconds=10)
    with call.own(OwnWork.READING, "default-1"):
        clock.at += 1
    timeline = call.timeline()
    assert (timeline.seconds, timeline.training_seconds, timeline.own_seconds) == (13, 10, 3)
    (run,) = timeline.runs
    assert (run.label, run.begun_seconds, run.ended_seconds) == ("default-1", 2, 12)
    assert [(span.work, span.about) for span in timeline.own] == [
        (OwnWork.PREPARING, ""),
        (OwnWork.READING, "default-1"),
    ]


def test_runs_beside_each_other_count_once() -> None:
    clock = Hand()
    call = CallTime(clock)
    call.ran("strict-2", begun_seconds=1, wall_seconds=4, lane=1)
    call.ran("strict-1", begun_seconds=0, wall_seconds=4)
    clock.at += 6
    timeline = call.timeline()
    assert (timeline.training_seconds, timeline.own_seconds) == (5, 1)
    assert [(run.label, run.lane) for run in timeline.runs] == [("strict-1", 0), ("strict-2", 1)]


def test_own_work_that_fails_is_measured_too() -> None:
    clock = Hand()
    call = CallTime(clock)

    def fail() -> None:
        clock.at += 3
        raise KeyError

    with pytest.raises(KeyError), call.own(OwnWork.READING):
        fail()
    (span,) = call.timeline().own
    assert span.ended_seconds == 3


def test_a_run_that_says_it_took_longer_than_the_call_makes_no_time_negative() -> None:
    call = CallTime(Hand())
    call.ran("strict-1", begun_seconds=0, wall_seconds=2.5)
    timeline = call.timeline()
    assert (timeline.seconds, timeline.own_seconds) == (2.5, 0)


@given(STRETCHES)
def test_what_is_covered_is_no_more_than_the_sum_and_the_whole(
    stretches: list[tuple[float, float]],
) -> None:
    seconds = {second for begun, ended in stretches for second in range(int(begun), int(ended))}
    assert covered(stretches) == len(seconds)
    assert covered(reversed(stretches)) == covered([*stretches, *stretches])
