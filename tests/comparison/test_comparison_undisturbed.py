"""Only steps beside which no other run went are timed."""

from __future__ import annotations

from evidence_cases import evidence_of, record_of
from hypothesis import given
from hypothesis import strategies as st

from gate.comparison.measuring.undisturbed import timed_alone
from gate.records.observed.columns.timings import StepTiming, Timings
from gate.records.observed.evidence import RunEvidence


def run_at(label: str, begun: float, *seconds: float, start: float = 1.0) -> RunEvidence:
    """A run let go at `begun`, whose first step ends `start` seconds later."""
    timings = Timings.of(
        StepTiming(step=step, seconds=taken, harness_seconds=0.0)
        for step, taken in enumerate(seconds, 1)
    )
    wall = start + sum(seconds[1:])
    record = record_of(label).model_copy(update={"clock_seconds": begun, "wall_seconds": wall})
    told = {"run": record, "timings": timings, "first_step_clock_seconds": begun + start}
    return evidence_of().model_copy(update=told)


def steps(run: RunEvidence) -> list[int]:
    return [one.step for one in run.timings]


def test_the_first_steps_of_one_and_the_last_of_the_other_are_alone() -> None:
    one = run_at("strict-1", 100.0, *[0.5] * 10)
    # let go in the middle of step 5 of the first: 100 + 1 + 4 * 0.5 = 103
    other = run_at("strict-2", 102.75, *[0.5] * 10)
    first, second = timed_alone((one, other), (one, other))
    assert steps(first) == [1, 2, 3, 4]
    # the first one ends at 105.5, where the other has made 4.5 steps behind its start
    assert steps(second) == [6, 7, 8, 9, 10]


def test_runs_one_after_the_other_keep_all_their_steps() -> None:
    one, other = run_at("a", 10.0, *[0.5] * 4), run_at("b", 12.5, *[0.5] * 4)
    assert timed_alone((one, other), (one, other)) == (one, other)


def test_without_a_clock_of_the_first_step_nothing_counts_beside_another() -> None:
    one, other = run_at("a", 10.0, 0.5, 0.5), run_at("b", 10.5, 0.5, 0.5)
    blind = one.model_copy(update={"first_step_clock_seconds": None})
    assert timed_alone((blind,), (blind, other))[0].timings == Timings()
    # an evidence of before there was a clock says nothing of company
    old = blind.model_copy(update={"run": blind.run.model_copy(update={"clock_seconds": 0.0})})
    assert timed_alone((old,), (old, other)) == (old,)


@given(
    st.lists(st.floats(0.01, 2), min_size=1, max_size=30),
    st.floats(100, 130),
    st.floats(0.1, 20),
)
def test_no_step_that_is_kept_lies_in_the_time_of_another(
    seconds: list[float], begun: float, wall: float
) -> None:
    one = run_at("one", 100.0, *seconds)
    other = run_at("other", begun, 0.1, start=wall)
    (kept,) = timed_alone((one,), (one, other))
    end = 100.0 + 1.0
    for step, taken in enumerate(seconds, 1):
        end += taken if step > 1 else 0.0
        lies_in = end - taken < begun + wall and begun < end
        if one.run.wall_seconds + 100.0 > begun:
            assert (step in steps(kept)) == (not lies_in)
        else:
            assert step in steps(kept)
