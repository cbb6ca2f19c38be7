"""The schedule: within the budget, on steps that two runs share, whatever their strides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate.harness.schedule import BATCH, RANDOM, TENSORS, Schedule

strides = st.integers(0, 8).map(lambda power: 2**power)


def due_steps(schedule: Schedule, last_step: int) -> list[int]:
    return [step for step in range(1, last_step + 1) if schedule.due(TENSORS, step)]


def trained(cost: float, step_seconds: float, last_step: int) -> tuple[Schedule, list[int]]:
    """A first run of steps and observations that always take the same, and what it observed."""
    schedule = Schedule(0.02, last_step, {})
    observed = []
    for step in range(1, last_step + 1):
        spent = 0.0
        if schedule.due(TENSORS, step):
            observed.append(step)
            schedule.spend(TENSORS, cost)
            spent = cost
        schedule.close_step(step, None if step == 1 else step_seconds, spent)
    return schedule, observed


@given(strides, strides, st.integers(1, 300))
def test_the_sparser_run_observes_only_what_the_denser_one_does(
    one: int, other: int, last_step: int
) -> None:
    denser, sparser = (
        due_steps(Schedule(0.02, last_step, {TENSORS: stride}), last_step)
        for stride in sorted((one, other))
    )
    assert set(sparser) <= set(denser)
    assert {1, last_step} <= set(sparser)


def test_two_runs_with_handed_strides_observe_the_same_however_fast_they_are() -> None:
    one, other = (Schedule(0.02, 40, {RANDOM: 1, BATCH: 1, TENSORS: 8}) for _ in range(2))
    for step in range(1, 41):
        other.spend(TENSORS, 5.0)
        other.close_step(step, 0.001, 5.0)
    assert due_steps(one, 40) == due_steps(other, 40) == [1, 9, 17, 25, 33, 40]


@given(st.floats(1e-5, 0.5), st.floats(1e-3, 1.0), st.integers(2, 200))
def test_a_later_run_stays_within_the_budget_unless_two_steps_exceed_it(
    cost: float, step_seconds: float, last_step: int
) -> None:
    schedule, _ = trained(cost, step_seconds, last_step)
    later = due_steps(Schedule(0.02, last_step, schedule.strides), last_step)
    within = len(later) * cost <= 0.02 * step_seconds * last_step * (1 + 1e-9)
    assert within or later == [1, last_step]


def test_a_first_run_observes_cheap_steps_while_it_calibrates() -> None:
    assert trained(0.001, 1.0, 8)[1] == list(range(1, 9))
    assert trained(0.1, 1.0, 8)[1] == [1, 8]
    assert trained(0.001, 0.001, 64)[1] == [1, 2, 3, 64]


@pytest.mark.parametrize("group", [RANDOM, BATCH])
def test_small_streams_take_at_most_a_quarter_of_the_budget(group: str) -> None:
    schedule = Schedule(0.02, 64, {})
    for step in (1, 2, 3):
        schedule.spend(group, 0.03)
        schedule.close_step(step, None if step == 1 else 1.0, 0.03)
    assert schedule.strides[group] == 8
    assert schedule.strides[TENSORS] == 1


def test_a_short_run_is_observed_at_every_step_for_its_free_seconds() -> None:
    schedule = Schedule(0.02, 25, {}, free_seconds=2.0)
    for step in range(1, 26):
        assert schedule.due(TENSORS, step)
        schedule.spend(TENSORS, 0.05)
        schedule.close_step(step, None if step == 1 else 0.03, 0.05)
    assert schedule.strides[TENSORS] == 1


def test_a_long_run_does_not_become_longer_than_its_free_seconds_allow() -> None:
    schedule = Schedule(0.02, 1000, {}, free_seconds=2.0)
    for step in range(1, 8):
        schedule.spend(TENSORS, 0.05)
        schedule.close_step(step, None if step == 1 else 0.03, 0.05)
    assert len(due_steps(Schedule(0.02, 1000, schedule.strides), 1000)) * 0.05 <= 2.0
