from __future__ import annotations

import math

import pytest
from each_row import each_row
from evidence_cases import evidence_of
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gate.comparison.checks import threshold_results
from gate.settings.levels import Threshold


def _met(last: float, **bounds: float) -> bool:
    (result,) = threshold_results(evidence_of(values=(9.0, last)), {"loss": Threshold(**bounds)})
    return result.met


@each_row(
    ("last", "bounds", "met"),
    [
        (0.9, {"min": 0.9}, True),
        (math.nextafter(0.9, 0), {"min": 0.9}, False),
        (0.9, {"max": 0.9}, True),
        (math.nextafter(0.9, 1), {"max": 0.9}, False),
        (0.5, {"min": 0.4, "max": 0.6}, True),
        (math.nan, {"min": 0.0}, False),
        (math.nan, {"max": 0.0}, False),
        (math.inf, {"min": 0.0}, False),
        (-math.inf, {"max": 0.0}, False),
    ],
)
def test_the_last_value_keeps_both_bounds_and_no_number_keeps_none(
    last: float, bounds: dict[str, float], *, met: bool
) -> None:
    assert _met(last, **bounds) == met


def test_a_metric_that_is_not_there_meets_nothing() -> None:
    (result,) = threshold_results(evidence_of(), {"file.accuracy": Threshold(min=0.0)})
    assert (result.met, result.step, result.value) == (False, None, "")


@given(st.floats(-9, 9), st.floats(-9, 9), st.floats(0, 9))
def test_a_wider_bound_meets_whatever_a_narrower_one_does(
    last: float, bound: float, more: float
) -> None:
    if _met(last, min=bound):
        assert _met(last, min=bound - more)


@pytest.mark.parametrize(
    ("bounds", "why"),
    [({}, "needs min or max"), ({"min": 2.0, "max": 1.0}, "no number is at least 2 and at most 1")],
)
def test_a_threshold_that_says_nothing_is_refused(bounds: dict[str, float], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Threshold(**bounds)
