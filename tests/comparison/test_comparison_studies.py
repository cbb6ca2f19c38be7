"""What several set-ups over the same seeds come to: means, pairs of one seed, efficiency."""

from __future__ import annotations

import math

import pytest
from evidence_cases import evidence_of, settings_of
from hypothesis import given
from hypothesis import strategies as st

from gate.comparison.studies import ArmContrast, Contrast, StudyArm, StudyRun
from gate.comparison.study_figures import arm_contrast, study_arm, study_runs
from gate.evidence.run_evidence import RunEvidence
from gate.evidence.step_columns import StepTiming, Timings
from gate.settings.gate_settings import GateSettings

Runs = tuple[RunEvidence, ...]
SETTINGS = settings_of(cost={"warmup_steps": 0, "min_steps": 2})
FINITE = st.floats(-1e6, 1e6)


def runs_of(name: str, *lasts: float, seconds: float = 0.1, samples: int | None = None) -> Runs:
    """A run of three steps for each last value."""
    made = [
        evidence_of(f"{name}-{number}", values=(2.5, 2.25, last), weights=repr(last).encode())
        for number, last in enumerate(lasts)
    ]
    timings = Timings.of(
        StepTiming(step=step, seconds=seconds, samples=samples) for step in range(1, 4)
    )
    return tuple(run.model_copy(update={"timings": timings}) for run in made)


def contrasted(
    one: Runs, two: Runs, settings: GateSettings = SETTINGS
) -> tuple[tuple[StudyArm, StudyArm], tuple[StudyRun, ...], ArmContrast]:
    own = study_runs({"one": one, "two": two}, range(len(one)), settings)
    sides = own[: len(one)], own[len(one) :]
    arms = (
        study_arm("one", ("a",), one, sides[0], one[0], settings),
        study_arm("two", ("b",), two, sides[1], one[0], settings),
    )
    return arms, own, arm_contrast(arms, (one, two), sides, settings)


def test_a_mean_has_the_interval_of_students_t() -> None:
    arms, _, _ = contrasted(runs_of("x", 1.0, 2.0, 3.0), runs_of("y", 1.0, 2.0, 3.0))
    metric = arms[0].metrics[0]
    assert metric.sample is not None
    assert (metric.sample.mean, metric.sample.deviation, metric.step) == (2.0, 1.0, 3)
    # 4.302653 is what R gives as the quantile
    assert metric.low == pytest.approx(2 - 4.302653 / math.sqrt(3), abs=1e-6)
    assert metric.high == pytest.approx(2 + 4.302653 / math.sqrt(3), abs=1e-6)


def test_equal_results_share_a_number_and_differ_nowhere() -> None:
    _, own, found = contrasted(runs_of("x", 1.0, 2.0, 3.0), runs_of("y", 1.0, 2.0, 3.0))
    assert [run.result for run in own] == [1, 2, 3, 1, 2, 3]
    assert (found.equal_pairs, found.metrics[0].state) == (3, Contrast.EQUAL)


def test_a_difference_is_taken_seed_by_seed() -> None:
    # means far apart between seeds: only pairs of one seed show the difference
    _, _, found = contrasted(runs_of("x", 1.0, 20.0, 300.0), runs_of("y", 1.1, 20.1, 300.11))
    metric = found.metrics[0]
    assert metric.state is Contrast.DIFFERENT
    assert metric.difference == pytest.approx(0.31 / 3)
    assert (metric.first_step, found.equal_pairs) == (3, 0)


def test_an_interval_that_holds_zero_shows_no_equality() -> None:
    _, _, found = contrasted(runs_of("x", 1.0, 2.0, 3.0), runs_of("y", 1.1, 1.9, 3.0))
    assert found.metrics[0].state is Contrast.NOT_SHOWN
    assert found.equal_pairs == 1


def test_two_seeds_decide_nothing() -> None:
    _, _, found = contrasted(runs_of("x", 1.0, 2.0), runs_of("y", 1.5, 2.5))
    assert found.metrics[0].state is Contrast.UNDECIDED
    assert (found.metrics[0].difference, found.metrics[0].reason) == (0.5, "under 3 seeds")


def test_a_nan_is_no_mean_and_no_difference() -> None:
    arms, _, found = contrasted(runs_of("x", 1.0, 2.0, math.nan), runs_of("y", 1.0, 2.0, 3.0))
    assert arms[0].metrics[0].reason == "not finite at some seeds"
    assert arms[0].curves[0].mean[-1] is None
    assert (found.metrics[0].state, found.metrics[0].reason) == (
        Contrast.UNDECIDED,
        "a value is NaN or infinite",
    )


def test_other_steps_are_not_compared() -> None:
    longer = tuple(evidence_of(f"y-{n}", values=(2.5, 2.25, 2.0, 1.0 + n)) for n in range(3))
    _, _, found = contrasted(runs_of("x", 1.0, 2.0, 3.0), longer)
    assert found.metrics[0].reason == "ends at different steps"
    assert found.metrics[0].first_step == 3


def test_a_seed_without_effect_is_seen() -> None:
    arms, _, _ = contrasted(runs_of("x", 1.0, 1.0, 1.0), runs_of("y", 1.0, 2.0, 1.0))
    assert [arm.ignores_seed for arm in arms] == [True, False]


def test_efficiency_is_the_work_of_a_rank_whether_the_batch_is_split_or_not() -> None:
    one = runs_of("x", 1.0, 2.0, 3.0, seconds=0.1, samples=64)
    split = runs_of("y", 1.0, 2.0, 3.0, seconds=0.05, samples=32)
    whole = runs_of("y", 1.0, 2.0, 3.0, seconds=0.125, samples=64)
    assert contrasted(one, split)[2].efficiency == pytest.approx(1.0)
    assert contrasted(one, whole)[2].efficiency == pytest.approx(0.8)


def test_without_known_samples_there_is_no_efficiency() -> None:
    _, _, found = contrasted(runs_of("x", 1.0, 2.0, 3.0), runs_of("y", 1.0, 2.0, 3.0))
    assert found.efficiency is None
    assert found.reason.startswith("samples per step unknown")


@given(st.lists(FINITE, min_size=3, max_size=6))
def test_an_arm_against_itself_is_equal(lasts: list[float]) -> None:
    _, _, found = contrasted(runs_of("x", *lasts), runs_of("y", *lasts))
    assert (found.equal_pairs, found.metrics[0].state) == (len(lasts), Contrast.EQUAL)


@given(st.lists(st.tuples(FINITE, FINITE), min_size=3, max_size=6))
def test_a_difference_turns_its_sign_with_the_sides(pairs: list[tuple[float, float]]) -> None:
    one, two = ([pair[side] for pair in pairs] for side in (0, 1))
    forth = contrasted(runs_of("x", *one), runs_of("y", *two))[2].metrics[0]
    back = contrasted(runs_of("y", *two), runs_of("x", *one))[2].metrics[0]
    assert (forth.state, forth.first_step) == (back.state, back.first_step)
    assert forth.difference is not None
    assert back.difference is not None
    assert forth.difference == pytest.approx(-back.difference)
