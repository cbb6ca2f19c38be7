"""Only steps beside which no other run went are timed."""

from __future__ import annotations

from evidence_cases import evidence_of, record_of
from hypothesis import given
from hypothesis import strategies as st

from gate.comparison.cost import timed_alone
from gate.evidence.run_evidence import RunEvidence
from gate.evidence.step_columns import StepTiming, Timings
from gate.settings.levels import CostSettings

# any number of steps is enough
NO_WARM_UP = CostSettings(warmup_steps=0, min_steps=2)


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
    first, second = timed_alone((one, other), (one, other), NO_WARM_UP)
    assert steps(first) == [1, 2, 3, 4]
    # the first one ends at 105.5, where the other has made 4.5 steps behind its start
    assert steps(second) == [6, 7, 8, 9, 10]


def test_runs_one_after_the_other_keep_all_their_steps() -> None:
    one, other = run_at("a", 10.0, *[0.5] * 4), run_at("b", 12.5, *[0.5] * 4)
    assert timed_alone((one, other), (one, other), NO_WARM_UP) == (one, other)


def started_ahead(run: RunEvidence, started: float, ready: float) -> RunEvidence:
    record = run.run.model_copy(update={"started_seconds": started})
    return run.model_copy(update={"run": record, "ready_seconds": ready})


def test_steps_beside_the_start_of_another_are_timed_only_for_lack_of_others() -> None:
    one = run_at("strict-1", 100.0, *[0.5] * 10)
    # its interpreter starts at 100, and waits from 103.25 on
    other = started_ahead(run_at("strict-2", 105.25, *[0.5] * 10), 100.0, 3.25)
    (few,) = timed_alone((one,), (one, other), CostSettings(warmup_steps=0, min_steps=2))
    assert steps(few) == [7, 8, 9]
    (more,) = timed_alone((one,), (one, other), CostSettings(warmup_steps=0, min_steps=4))
    assert steps(more) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_a_start_that_was_over_before_disturbs_nothing() -> None:
    one = run_at("default-2", 100.0, *[0.5] * 4)
    other = started_ahead(run_at("strict-1", 110.0, *[0.5] * 4), 95.0, 4.0)
    assert timed_alone((one,), (one, other), NO_WARM_UP) == (one,)


def test_without_a_clock_of_the_first_step_nothing_counts_beside_another() -> None:
    one, other = run_at("a", 10.0, 0.5, 0.5), run_at("b", 10.5, 0.5, 0.5)
    blind = one.model_copy(update={"first_step_clock_seconds": None})
    assert timed_alone((blind,), (blind, other), NO_WARM_UP)[0].timings == Timings()
    # an evidence of before there was a clock says nothing of company
    old = blind.model_copy(update={"run": blind.run.model_copy(update={"clock_seconds": 0.0})})
    assert timed_alone((old,), (old, other), NO_WARM_UP) == (old,)


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
    (kept,) = timed_alone((one,), (one, other), NO_WARM_UP)
    end = 100.0 + 1.0
    for step, taken in enumerate(seconds, 1):
        end += taken if step > 1 else 0.0
        lies_in = end - taken < begun + wall and begun < end
        if one.run.wall_seconds + 100.0 > begun:
            assert (step in steps(kept)) == (not lies_in)
        else:
            assert step in steps(kept)
