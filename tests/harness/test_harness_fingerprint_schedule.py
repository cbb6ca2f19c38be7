"""The schedule: within the budget, on steps that two runs share, whatever their speed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate.harness.recording.observer import BATCH, RANDOM, TENSORS, Schedule

costs = st.lists(st.floats(1e-6, 2.0), min_size=1, max_size=40)


def trained(costs: list[float], step_seconds: float, last_step: int) -> tuple[Schedule, list[int]]:
    """A run whose observations take these seconds in turn, and the steps that it observed."""
    schedule = Schedule(0.02, last_step)
    observed = []
    for step in range(1, last_step + 1):
        spent = 0.0
        if schedule.due(TENSORS, step):
            observed.append(step)
            spent = costs[step % len(costs)]
        groups = {TENSORS: spent} if spent else {}
        schedule.close_step(step, None if step == 1 else step_seconds, spent, groups)
    return schedule, observed


@given(costs, costs, st.integers(1, 300))
def test_two_runs_share_what_the_sparser_one_observes_however_their_speed_moves(
    one: list[float], other: list[float], last_step: int
) -> None:
    """Steps in between count too, once the last interval of both is chosen."""
    (first, left), (second, right) = (trained(each, 0.5, last_step) for each in (one, other))
    common, settled = set(left) & set(right), 2 ** (last_step.bit_length() - 1)
    widest = max(first.sampling_intervals[TENSORS], second.sampling_intervals[TENSORS])
    assert {1, last_step} <= common
    assert {step for step in range(settled + 1, last_step) if (step - 1) % widest == 0} <= common


@given(st.floats(1e-5, 0.5), st.floats(1e-3, 1.0), st.integers(2, 200))
def test_a_run_stays_within_the_budget_but_for_its_calibration_and_its_ends(
    cost: float, step_seconds: float, last_step: int
) -> None:
    _, observed = trained([cost], step_seconds, last_step)
    later = [step for step in observed if step > 3]
    within = len(later) * cost <= 0.02 * step_seconds * last_step * (1 + 1e-9)
    assert within or later == [last_step]


def test_a_run_observes_cheap_steps_while_it_calibrates() -> None:
    assert trained([0.001], 1.0, 8)[1] == list(range(1, 9))
    assert trained([0.1], 1.0, 8)[1] == [1, 2, 8]
    assert trained([0.001], 0.001, 64)[1] == [1, 2, 3, 64]


@given(st.floats(1e-4, 0.1), st.integers(100, 1000))
def test_the_first_ten_steps_are_observed_where_most_of_the_budget_or_the_free_seconds_allow(
    cost: float, last_step: int
) -> None:
    most = 0.015 * 0.25 * last_step
    assert (trained([cost], 0.25, last_step)[1][:10] == list(range(1, 11))) or 9 * cost > most
    schedule = Schedule(0.02, last_step, free_seconds=1.0)
    for step in range(1, 11):
        assert schedule.due(TENSORS, step)
        schedule.close_step(step, None if step == 1 else 0.25, cost, {TENSORS: cost})


@given(st.floats(1e-4, 0.5), st.integers(100, 1000))
def test_after_the_first_ten_steps_a_long_run_takes_a_quarter_of_the_budget_whatever_is_free(
    cost: float, last_step: int
) -> None:
    schedule, later = Schedule(0.02, last_step, free_seconds=2.0), 0
    for step in range(1, last_step):
        due = schedule.due(TENSORS, step)
        later += due and step > 10
        groups = {TENSORS: cost} if due else {}
        schedule.close_step(step, None if step == 1 else 0.25, cost if due else 0.0, groups)
    assert later * cost <= 0.005 * 0.25 * last_step * (1 + 1e-9)


@given(st.floats(1e-6, 100.0))
def test_what_the_first_step_costs_decides_nothing(first: float) -> None:
    """Cold caches, and what a device loads at its first use, come once."""
    observed = [trained([0.01, cost, *[0.01] * 38], 2.0, 32)[1] for cost in (first, 0.01)]
    assert observed[0] == observed[1] == list(range(1, 33))


@pytest.mark.parametrize("group", [RANDOM, BATCH])
def test_small_fingerprints_take_at_most_an_eighth_of_the_budget(group: str) -> None:
    schedule = Schedule(0.02, 64)
    for step in (1, 2, 3):
        schedule.close_step(step, None if step == 1 else 1.0, 0.03, {group: 0.03})
    assert schedule.sampling_intervals[group] == 16
    assert schedule.sampling_intervals[TENSORS] == 1


def test_a_short_run_is_observed_at_every_step_for_its_free_seconds() -> None:
    schedule = Schedule(0.02, 25, free_seconds=2.0)
    for step in range(1, 26):
        assert schedule.due(TENSORS, step)
        schedule.close_step(step, None if step == 1 else 0.03, 0.05, {TENSORS: 0.05})
    assert schedule.sampling_intervals[TENSORS] == 1


def test_a_long_run_does_not_become_longer_than_its_free_seconds_allow() -> None:
    schedule, observed = Schedule(0.02, 1000, free_seconds=2.0), 0
    for step in range(1, 1001):
        due = schedule.due(TENSORS, step)
        observed += due
        groups = {TENSORS: 0.05} if due else {}
        schedule.close_step(step, None if step == 1 else 0.03, 0.05 if due else 0.0, groups)
    # half a second more at most, for the calibration
    assert observed * 0.05 <= 2.5
