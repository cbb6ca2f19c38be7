"""The order of runs where two commits are compared: no drift of the machine may favour one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gate.execution.plan import plan_compare
from gate.records.runs import Commit, RunMode

EVEN = st.integers(1, 25).map(lambda half: 2 * half)


def test_two_rounds_go_there_and_back() -> None:
    assert [planned.label for planned in plan_compare(2)] == [
        *("base-1", "strict-1", "default-1", "base-default-1"),
        *("base-default-2", "default-2", "strict-2", "base-2"),
    ]


@given(EVEN)
def test_a_drift_that_is_linear_in_time_adds_the_same_to_both_commits(rounds: int) -> None:
    plan = plan_compare(rounds)
    for mode in (RunMode.STRICT, RunMode.DEFAULT):
        base, head = (
            [place for place, run in enumerate(plan) if (run.commit, run.mode) == (commit, mode)]
            for commit in (Commit.BASE, Commit.HEAD)
        )
        assert sum(base) == sum(head)
        assert sum(one < other for one, other in zip(base, head, strict=True)) == rounds / 2
        assert {abs(one - other) for one, other in zip(base, head, strict=True)} == {1}


@given(EVEN)
def test_each_run_has_a_label_of_its_own(rounds: int) -> None:
    labels = [planned.label for planned in plan_compare(rounds)]
    assert len(set(labels)) == len(labels) == 4 * rounds


def test_runs_for_times_are_not_observed() -> None:
    assert {(run.mode, run.observe) for run in plan_compare(2)} == {
        (RunMode.STRICT, True),
        (RunMode.DEFAULT, False),
    }
