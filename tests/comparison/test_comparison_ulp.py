from __future__ import annotations

import math

import numpy as np
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from gate.comparison.metric_differences import ulp_distance, ulp_size

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SINGLES = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(FLOATS, FLOATS)
def test_distance_is_symmetric_and_zero_only_for_equal_numbers(a: float, b: float) -> None:
    distance = ulp_distance(a, b, "float64")
    assert distance == ulp_distance(b, a, "float64")
    assert (distance == 0) == (a == b)


@given(SINGLES)
def test_neighbours_are_one_apart(value: float) -> None:
    with np.errstate(all="ignore"):  # beyond the largest, and among the subnormal ones
        upper = float(np.nextafter(np.float32(value), np.float32(math.inf)))
    if math.isfinite(upper):
        assert ulp_distance(value, upper, "float32") == 1


@each_row(
    ("a", "b", "dtype", "distance"),
    [
        (1.0, 1.0078125, "bfloat16", 1),
        (1.0, 1.0009765625, "float16", 1),
        (-1.0, -1.0078125, "bfloat16", 1),
        (-0.0, 0.0, "float64", 0),
        (5e-324, -5e-324, "float64", 2),
        (float("nan"), 1.0, "float64", None),
        (1.0, float("inf"), "float32", None),
        (1e300, 1.0, "float32", None),
        (1e6, 1.0, "float16", None),
    ],
)
def test_known_distances(a: float, b: float, dtype: str, distance: int | None) -> None:
    assert ulp_distance(a, b, dtype) == distance  # type: ignore[arg-type] # parametrised literal


@given(st.floats(2.0**-90, 2.0**90, width=32))
def test_the_size_of_a_unit_is_the_distance_to_the_neighbour(value: float) -> None:
    assert ulp_size(value, "float32") == float(np.spacing(np.float32(value)))
    assert ulp_size(-value, "bfloat16") == ulp_size(value, "float32") * 2**16
