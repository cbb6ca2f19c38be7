from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate.comparison.floats import numbers, ulp_distances, ulp_size
from gate.comparison.ulp import ulp_distance
from gate.comparison.weights import pair_sums, weight_noise
from gate.records.evidence import FloatType
from gate.records.values import FloatName, FloatPair

CODES: dict[FloatName, str] = {"F64": "d", "F32": "f", "F16": "e"}
TYPES: dict[FloatName, FloatType] = {"F64": "float64", "F32": "float32", "F16": "float16"}
FLOATS32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
VECTORS = st.lists(st.tuples(FLOATS32, FLOATS32), min_size=1, max_size=20)


def _pack(values: list[float], dtype: FloatName = "F32") -> bytes:
    return struct.pack(f"<{len(values)}{CODES[dtype]}", *values)


def _pair(left: list[float], right: list[float], dtype: FloatName = "F32") -> FloatPair:
    return FloatPair(dtype=dtype, left=_pack(left, dtype), right=_pack(right, dtype))


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16"])
@given(pair=st.tuples(st.floats(-6e4, 6e4, width=16), st.floats(-6e4, 6e4, width=16)))
def test_distances_are_those_of_the_scalar_definition(
    dtype: FloatName, pair: tuple[float, float]
) -> None:
    (found,) = ulp_distances(dtype, _pack([pair[0]], dtype), _pack([pair[1]], dtype))
    assert int(found) == ulp_distance(*pair, TYPES[dtype])


def test_bfloat16_is_the_upper_half_of_a_float32() -> None:
    one, next_one = b"\x80\x3f", b"\x81\x3f"
    assert list(numbers("BF16", one + next_one)) == [1.0, 1.0078125]
    assert list(ulp_distances("BF16", one, next_one)) == [1]


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
@given(data=st.binary(min_size=16, max_size=64))
def test_any_bytes_are_counted_without_a_warning(dtype: FloatName, data: bytes) -> None:
    whole = data[: len(data) // 8 * 8]
    zeros = bytes(len(whole))
    sums = pair_sums([FloatPair(dtype=dtype, left=whole, right=zeros)])
    assert sums.elements + sums.not_finite == len(numbers(dtype, whole))


def test_a_signaling_nan_is_not_finite_and_nothing_else() -> None:
    signaling = bytes.fromhex("074da1ff")
    sums = pair_sums([FloatPair(dtype="F32", left=signaling, right=signaling)])
    assert (sums.elements, sums.not_finite, sums.differing) == (0, 1, 0)


def test_the_widest_distance_of_float64_does_not_overflow() -> None:
    widest = ulp_distances("F64", _pack([-1.7e308], "F64"), _pack([1.7e308], "F64"))
    assert int(widest[0]) == ulp_distance(-1.7e308, 1.7e308, "float64")


@given(st.floats(2.0**-90, 2.0**90, width=32))
def test_the_size_of_a_unit_is_the_distance_to_the_neighbour(value: float) -> None:
    assert ulp_size(value, "float32") == float(np.spacing(np.float32(value)))
    assert ulp_size(-value, "bfloat16") == ulp_size(value, "float32") * 2**16


@given(VECTORS)
def test_the_relative_norm_is_that_of_numpy(pairs: list[tuple[float, float]]) -> None:
    left, right = ([pair[side] for pair in pairs] for side in (0, 1))
    sums = pair_sums([_pair(left, right)])
    norm = max(float(np.linalg.norm(left)), float(np.linalg.norm(right)))
    difference = float(np.linalg.norm(np.subtract(left, right)))
    assert sums.relative_l2 == pytest.approx(difference / norm if difference else 0.0)


@given(VECTORS)
def test_stretches_add_up_to_the_whole(pairs: list[tuple[float, float]]) -> None:
    left, right = ([pair[side] for pair in pairs] for side in (0, 1))
    whole = weight_noise((pair_sums([_pair(left, right)]),), ())
    pieces = weight_noise(
        (pair_sums([_pair([one], [other]) for one, other in zip(left, right, strict=True)]),), ()
    )
    assert pieces.ulp == whole.ulp
    assert pieces.elements_that_differ == whole.elements_that_differ
    assert pieces.largest_relative_l2 == pytest.approx(whole.largest_relative_l2)


def test_quantiles_count_every_weight() -> None:
    one = 1.0 + 2**-23
    noise = weight_noise((pair_sums([_pair([1.0] * 10, [1.0] * 8 + [one, 2.0])]),), ("a",))
    assert [(each.share, each.distance) for each in noise.ulp] == [
        (0.5, 0),
        (0.9, 1),
        (0.99, 2**24),
        (1.0, 2**24),
    ]
    assert (noise.elements, noise.elements_that_differ, noise.not_compared) == (10, 2, ("a",))


def test_what_is_not_finite_is_counted_and_left_out() -> None:
    sums = pair_sums([_pair([math.nan, math.inf, 1.0], [1.0, 1.0, 1.0])])
    assert (sums.not_finite, sums.elements, sums.relative_l2) == (2, 1, 0.0)


def test_nothing_to_compare_has_no_distance() -> None:
    assert {each.distance for each in weight_noise((pair_sums([]),), ()).ulp} == {0}
