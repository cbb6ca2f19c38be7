from __future__ import annotations

import math

import pytest
from each_row import each_row
from evidence_cases import evidence_of
from hypothesis import given
from hypothesis import strategies as st

from gate.comparison.calibration import metric_noise, undetected_share
from gate.comparison.tolerances import rounded_up, tolerance_factor

NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=False)
REAL = st.floats(1e-300, 1e300)


@each_row(
    ("runs", "factor"),
    [(2, 37.7), (3, 9.92), (4, 6.37), (5, 5.08), (6, 4.41), (10, 3.38), (20, 2.75)],
)
def test_tolerance_factors_are_those_of_the_tables(runs: int, factor: float) -> None:
    assert tolerance_factor(runs) == pytest.approx(factor, rel=0.02)


def test_more_runs_leave_less_undetected() -> None:
    assert undetected_share(2) == pytest.approx(0.95)
    assert undetected_share(60) == pytest.approx(0.0495, abs=1e-3)


def test_the_tolerance_is_the_factor_times_the_scatter_of_a_difference() -> None:
    runs = tuple(evidence_of(values=(1.0, last)) for last in (2.0, 4.0, 6.0))
    (noise,), notes = metric_noise(runs)
    assert (noise.gap_step, noise.largest_gap, noise.final_gap, notes) == (2, 4.0, 4.0, ())
    wanted = tolerance_factor(3) * math.sqrt(2) * 2.0
    assert wanted <= noise.tolerance < wanted * 1.1
    assert not noise.at_floor


def test_without_scatter_one_unit_in_the_last_place_is_left() -> None:
    (noise,), _ = metric_noise((evidence_of(), evidence_of()))
    assert noise.at_floor
    assert 2**-51 <= noise.tolerance < 2**-51 * 1.1
    assert noise.largest_deviation == 0


def test_what_has_no_finite_step_is_left_out_with_a_note() -> None:
    runs = (evidence_of(values=(math.nan,)), evidence_of(values=(1.0,)))
    assert metric_noise(runs) == (
        (),
        ("metric loss has no step at which all runs gave a finite number",),
    )


def test_a_metric_that_a_run_lacks_is_told() -> None:
    bare = evidence_of().model_copy(update={"metrics": ()})
    assert metric_noise((evidence_of(), bare))[1] == ("metric loss is missing in 1 run",)


@given(st.lists(NUMBERS, min_size=2, max_size=6))
def test_the_order_of_the_runs_does_not_matter(values: list[float]) -> None:
    forwards = metric_noise(tuple(evidence_of(values=(value,)) for value in values))
    backwards = metric_noise(tuple(evidence_of(values=(value,)) for value in reversed(values)))
    assert forwards[0][0].largest_gap == backwards[0][0].largest_gap
    assert forwards[0][0].tolerance == pytest.approx(backwards[0][0].tolerance, rel=0.1)


@given(REAL)
def test_rounding_never_makes_a_tolerance_smaller(value: float) -> None:
    assert value <= rounded_up(value) <= value * 1.2


def test_rounding_keeps_nothing_and_gives_what_a_person_would_type() -> None:
    assert rounded_up(0.0) == 0.0
    assert repr(rounded_up(0.00012345)) == "0.00013"
    assert rounded_up(5e-324) == 5e-324
