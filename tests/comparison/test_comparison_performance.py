"""Throughput and run-time variance: what they are of, and when there are none."""

from __future__ import annotations

import math
import statistics

import pytest
from evidence_cases import evidence_of
from hypothesis import given
from hypothesis import strategies as st

from gate.comparison.level_records import Performance
from gate.comparison.performance import performance_of
from gate.evidence.run_evidence import RunEvidence
from gate.evidence.step_columns import StepTiming, Timings
from gate.settings.levels import CostSettings
from gate.training.runs import Commit, RunMode

SETTINGS = CostSettings(warmup_steps=1, min_steps=2)
SECONDS = st.lists(st.floats(1e-3, 10), min_size=2, max_size=8).map(tuple)


def run(
    label: str, *seconds: float, samples: tuple[int | None, ...] | None = None, disturbed: float = 0
) -> RunEvidence:
    """A run whose first step, the warm-up, took a minute."""
    counts = (None, *samples) if samples else (None,) * (len(seconds) + 1)
    timings = Timings.of(
        StepTiming(step=step, seconds=each, samples=count, harness_seconds=disturbed)
        for step, (each, count) in enumerate(zip((60.0, *seconds), counts, strict=True), start=1)
    )
    return evidence_of(label).model_copy(update={"timings": timings})


def measured(*runs: RunEvidence) -> Performance:
    (found,) = performance_of(runs, SETTINGS)
    return found


def test_a_rate_is_steps_over_seconds_after_the_warm_up() -> None:
    found = measured(run("strict-1", 0.1, 0.3), run("strict-2", 0.2, 0.2))
    assert (found.runs, found.steps_used) == (2, 4)
    assert found.steps_per_second == pytest.approx(5)
    assert found.step_seconds == pytest.approx(0.2)


def test_samples_are_counted_over_the_same_steps() -> None:
    assert measured(run("strict-1", 0.1, 0.3, samples=(4, 2))).samples_per_second == pytest.approx(
        15
    )


@pytest.mark.parametrize("samples", [(4, None), (0, 0), None])
def test_samples_that_are_not_all_known_give_no_rate(
    samples: tuple[int | None, ...] | None,
) -> None:
    assert measured(run("strict-1", 0.1, 0.3, samples=samples)).samples_per_second is None


def test_variance_is_told_over_steps_and_between_runs() -> None:
    found = measured(run("strict-1", 0.1, 0.3), run("strict-2", 0.3, 0.5))
    # both runs have the deviation of two steps 0.2 s apart; their means are 0.2 s and 0.4 s
    assert found.step_deviation_seconds == pytest.approx(math.sqrt(0.02))
    assert found.step_variation == pytest.approx(math.sqrt(0.02) / 0.3)
    assert found.run_deviation_seconds == pytest.approx(math.sqrt(0.02))
    assert found.run_variation == pytest.approx(math.sqrt(0.02) / 0.3)


def test_one_run_has_no_deviation_between_runs() -> None:
    assert measured(run("strict-1", 0.1, 0.3)).run_variation is None


@given(SECONDS, st.floats(0.1, 10))
def test_a_slower_clock_scales_times_and_leaves_variations(
    seconds: tuple[float, ...], factor: float
) -> None:
    # timings are kept to the nanosecond
    one, other = (
        measured(run("strict-1", *(each * by for each in seconds))) for by in (1.0, factor)
    )
    assert one.step_variation is not None
    assert one.step_seconds is not None
    assert other.step_seconds == pytest.approx(one.step_seconds * factor, rel=1e-4)
    assert other.step_variation == pytest.approx(one.step_variation, rel=1e-3, abs=1e-4)


@given(SECONDS)
def test_of_one_run_the_deviation_is_that_of_its_steps(seconds: tuple[float, ...]) -> None:
    kept = [round(each, 9) for each in seconds]
    found = measured(run("strict-1", *kept)).step_deviation_seconds
    assert found == pytest.approx(statistics.stdev(kept), rel=1e-6, abs=1e-12)


def test_each_kind_stands_alone_head_before_base() -> None:
    runs = [
        run(label, 0.1, 0.1)
        for label in ("base-1", "default-1", "strict-1", "audit-1", "default-2")
    ]
    kinds = [(each.commit, each.mode, each.runs) for each in performance_of(tuple(runs), SETTINGS)]
    assert kinds == [
        (Commit.HEAD, RunMode.STRICT, 1),
        (Commit.HEAD, RunMode.DEFAULT, 2),
        (Commit.BASE, RunMode.STRICT, 1),
    ]


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [
        ((), "0 steady steps are too few; a run needs at least 2 after its warm-up of 1"),
        ((0.1,), "1 steady step is too few; a run needs at least 2 after its warm-up of 1"),
        ((0.0, 0.0), "steps too short for this clock"),
    ],
)
def test_what_cannot_be_measured_says_why(seconds: tuple[float, ...], reason: str) -> None:
    found = measured(run("strict-1", *seconds))
    assert (found.reason, found.steps_per_second, found.step_variation) == (reason, None, None)
    assert found.peak_memory_bytes == 1000


def test_steps_that_the_harness_disturbed_count_only_where_no_others_do() -> None:
    quiet, loud = run("strict-1", 0.1, 0.1), run("strict-1", 0.3, 0.3, disturbed=0.1)
    mixed = quiet.model_copy(update={"timings": Timings.of((*quiet.timings, *loud.timings[1:]))})
    assert measured(mixed).step_seconds == pytest.approx(0.1)
    assert measured(loud).step_seconds == pytest.approx(0.3)
