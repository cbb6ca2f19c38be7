"""What two commits are to each other, from runs that are known: numbers, repeats, speed."""

from __future__ import annotations

import math

import pytest
from compare_cases import MOVED, compared_of, request_of, run_of
from evidence_cases import LOSSES, series_of
from hypothesis import given
from hypothesis import strategies as st

from gate.comparison.differences import CostState
from gate.comparison.measurements import MAX_METRICS, MAX_VALUES, Closeness
from gate.training.runs import Commit, RunMode

LOOSE = {"tolerances": ({"metric": "loss", "relative": 0.01},)}
SLOW, FAST = (0.2, 0.2, 0.2), (0.1, 0.1, 0.1)


def test_equal_runs_are_equal_bit_for_bit() -> None:
    found = compared_of().document
    assert (found.closeness, found.repeatable, found.first) == (Closeness.EQUAL, True, None)
    assert (found.base.strict_results, found.head.default_results) == (1, 1)
    assert (found.metrics[0].first_step, found.metrics[0].differing_points) == (None, 0)


def test_a_metric_that_moved_is_told_by_step_and_size() -> None:
    found = compared_of(head={"values": MOVED, "weights": b"others"}).document
    assert (found.closeness, found.differing_tensors) == (Closeness.APART, 1)
    (loss,) = found.metrics
    assert (loss.first_step, loss.largest_step, loss.differing_points) == (2, 2, 1)
    assert loss.largest_relative == pytest.approx(0.001)
    assert (loss.base_values[1], loss.head_values[1]) == (repr(LOSSES[1]), repr(MOVED[1]))
    assert (loss.base_last, loss.head_last) == (repr(LOSSES[-1]), repr(MOVED[-1]))


@pytest.mark.parametrize("policy", [{}, {"require_bitwise": True}])
def test_within_tolerance_is_told_whatever_the_policy_says(policy: dict[str, object]) -> None:
    request = request_of(compare=LOOSE, policy=policy)
    found = compared_of(head={"values": MOVED}, request=request).document
    assert (found.closeness, found.metrics[0].within) == (Closeness.WITHIN_TOLERANCE, True)


@pytest.mark.parametrize("commit", [Commit.BASE, Commit.HEAD])
@pytest.mark.parametrize("number", [1, 2])
def test_equal_once_and_not_again_is_not_equal(commit: Commit, number: int) -> None:
    other = run_of(commit, RunMode.STRICT, number, values=MOVED)
    found = compared_of(other=other).document
    assert (found.closeness, found.repeatable) == (Closeness.APART, False)
    assert {found.base.strict_results, found.head.strict_results} == {1, 2}


def test_a_default_run_decides_nothing() -> None:
    other = run_of(Commit.BASE, RunMode.DEFAULT, 1, values=MOVED)
    found = compared_of(other=other).document
    assert (found.closeness, found.repeatable) == (Closeness.EQUAL, True)
    assert found.base.default_results == 2


def test_other_steps_are_not_comparable_in_every_number() -> None:
    found = compared_of(base={"values": LOSSES[:2]}).document
    assert found.closeness is Closeness.NOT_COMPARABLE
    assert (found.base_steps, found.head_steps) == (2, 3)
    assert found.metrics[0].fault == "other steps: 2 values in base, 3 in head"
    assert found.metrics[0].compared_points == 2


def test_a_metric_of_one_side_alone_says_whose_it_is() -> None:
    runs = compared_of().runs
    other = runs[0].model_copy(update={"metrics": (*runs[0].metrics, series_of(name="accuracy"))})
    found = compared_of(other=other).document
    assert [(metric.name, metric.fault) for metric in found.metrics] == [
        ("accuracy", "only in base"),
        ("loss", ""),
    ]


def test_a_number_that_is_none_is_a_note_and_no_error() -> None:
    found = compared_of({"values": (math.nan,)}, {"values": (math.nan,)}).document
    assert found.closeness is Closeness.EQUAL
    assert found.notes == (
        "base: loss is not finite at step 1 (nan)",
        "head: loss is not finite at step 1 (nan)",
    )


def test_a_measured_ratio_lies_outside_the_noise() -> None:
    found = compared_of({"step_seconds": FAST}, {"step_seconds": SLOW, "memory": 2000}, rounds=4)
    strict = found.document.ratios[0]
    assert (strict.state, strict.reason, strict.rounds) == (CostState.MEASURED, "", 4)
    assert strict.ratio == pytest.approx(2)
    assert strict.memory_ratio == 2
    assert strict.low == pytest.approx(2)


@pytest.mark.parametrize(
    ("seconds", "rounds", "reason"),
    [
        (SLOW, 2, "fewer than 3 rounds"),
        (FAST, 4, "within the noise of this machine"),
        ((0.2,), 4, "1 steady step is too few; a run needs at least 2"),
        ((0.0, 0.0), 4, "steps too short for this clock"),
    ],
)
def test_what_claims_nothing_says_why(seconds: tuple[float, ...], rounds: int, reason: str) -> None:
    found = compared_of({"step_seconds": FAST}, {"step_seconds": seconds}, rounds=rounds)
    assert {ratio.reason for ratio in found.document.ratios} == {reason}


def test_noise_of_one_commit_hides_a_ratio_of_its_size() -> None:
    loud = run_of(Commit.BASE, RunMode.STRICT, 2, step_seconds=(0.3,) * 3)
    ratio = compared_of(head={"step_seconds": SLOW}, rounds=4, other=loud).document.ratios[0]
    assert ratio.state is CostState.INCONCLUSIVE
    assert ratio.control_high is not None
    assert ratio.high is not None
    assert ratio.control_high > ratio.high


@given(st.floats(0.01, 1), st.floats(0.01, 1))
def test_exchanging_base_and_head_inverts_the_ratio(one: float, other: float) -> None:
    slow, fast = ({"step_seconds": (round(each, 9),) * 3} for each in (one, other))
    there = compared_of(dict(slow), dict(fast)).document.ratios[0].ratio
    back = compared_of(dict(fast), dict(slow)).document.ratios[0].ratio
    assert there is not None
    assert back == pytest.approx(1 / there)


def test_many_and_long_metrics_are_cut_and_counted() -> None:
    runs = compared_of().runs
    many = tuple(series_of(name=f"m{number:03}") for number in range(MAX_METRICS))
    long = series_of(tuple(map(float, range(5000))), name="long")
    others = [run.model_copy(update={"metrics": (*run.metrics, long, *many)}) for run in runs[:1]]
    found = compared_of(other=others[0]).document
    assert (len(found.metrics), found.metrics_omitted) == (MAX_METRICS, 2)
    (shown,) = [metric for metric in found.metrics if metric.name == "long"]
    assert (len(shown.steps), shown.steps[0], shown.steps[-1]) == (MAX_VALUES, 1, 5000)


def test_the_step_times_of_both_sides_give_the_ratio_beside_them() -> None:
    slow = run_of(Commit.HEAD, RunMode.STRICT, 2, step_seconds=(0.9,) * 3)
    ratio = compared_of(head={"step_seconds": SLOW}, rounds=3, other=slow).document.ratios[0]
    assert ratio.base_step_seconds is not None
    assert ratio.head_step_seconds is not None
    assert ratio.ratio == pytest.approx(ratio.head_step_seconds / ratio.base_step_seconds)
