"""By how much tensors differ, held against plain Python or NumPy in float64."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import pytest
from each_row import each_row
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from saved_tensors import Stored, array, floats, numbers_of, raw

from gate.comparison.metric_differences import ulp_distance
from gate.comparison.tensor_numbers import ELEMENT_TYPES

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
PAIRS = st.lists(st.tuples(FINITE, FINITE), min_size=1, max_size=20)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(PAIRS.filter(lambda pairs: any(_bits(a) != _bits(b) for a, b in pairs)))
def test_figures_are_those_of_plain_arithmetic(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[float, float]]
) -> None:
    left, right = zip(*pairs, strict=True)
    found = numbers_of(tmp_path_factory.mktemp("pair"), floats(*left), floats(*right))
    gaps = [abs(a - b) for a, b in pairs]
    ratios = [
        gap / max(abs(a), abs(b)) if gap else 0.0 for gap, (a, b) in zip(gaps, pairs, strict=True)
    ]
    assert found.differing == sum(_bits(a) != _bits(b) for a, b in pairs)
    assert found.first_index == (next(i for i, (a, b) in enumerate(pairs) if _bits(a) != _bits(b)),)
    assert found.max_absolute == max(gaps)
    assert found.max_relative == pytest.approx(max(ratios), rel=1e-15)
    norm = max(math.hypot(*left), math.hypot(*right))
    assert found.relative_l2 == pytest.approx(math.hypot(*gaps) / norm if norm else 0, rel=1e-9)
    distances = sorted(ulp_distance(a, b, "float32") or 0 for a, b in pairs)
    assert found.ulp[-1].distance == distances[-1]
    for share in found.ulp:
        exact = distances[math.ceil(share.share * len(distances)) - 1]
        assert exact <= share.distance <= exact * (1 + 1 / 64)


def _bits(value: float) -> bytes:
    return struct.pack("<f", value)


@pytest.mark.parametrize("threads_fit", [1000, 400_000, 3_000_000])
def test_large_tensors_are_summed_over_all_stretches(tmp_path: Path, threads_fit: int) -> None:
    generator = np.random.default_rng(7)
    left = generator.standard_normal((threads_fit // 8, 8)).astype(np.float32)
    right = left.copy()
    right[threads_fit // 16, 3] += np.float32(0.5)
    right[-1, 7] -= np.float32(2)
    found = numbers_of(tmp_path, array(left), array(right))
    gaps = left.astype(np.float64) - right.astype(np.float64)
    assert found.differing == 2
    assert found.elements == left.size
    assert found.first_index == (threads_fit // 16, 3)
    assert found.max_absolute == np.abs(gaps).max()
    norm = max(np.linalg.norm(left.astype(np.float64)), np.linalg.norm(right.astype(np.float64)))
    assert found.relative_l2 == pytest.approx(np.linalg.norm(gaps) / norm, rel=1e-12)
    assert [share.distance for share in found.ulp[:3]] == [0, 0, 0]


def test_not_numbers_and_infinities_are_counted_on_both_sides(tmp_path: Path) -> None:
    nan, inf = math.nan, math.inf
    found = numbers_of(tmp_path, floats(1, nan, inf, 4), floats(1, nan, 3, nan))
    assert found.not_numbers == (1, 2)
    assert found.infinities == (1, 0)
    assert found.differing == 2
    assert found.first_index == (2,)
    assert found.max_absolute == 0
    assert found.finiteness_moved


def test_a_tensor_without_a_finite_number_has_no_figures(tmp_path: Path) -> None:
    found = numbers_of(tmp_path, floats(math.nan), floats(math.inf))
    assert (found.max_absolute, found.max_relative, found.relative_l2) == (None, None, None)
    assert found.ulp == ()


def test_the_two_zeros_are_one_number_and_two_patterns(tmp_path: Path) -> None:
    found = numbers_of(tmp_path, floats(0.0, 5), floats(-0.0, 5))
    assert found.differing == 1
    assert found.ulp[-1].distance == 0
    assert found.relative_l2 == 0


def test_numbers_whose_difference_leaves_float64_have_a_relative_one(tmp_path: Path) -> None:
    found = numbers_of(tmp_path, floats(1.7e308, dtype="F64"), floats(-1.7e308, dtype="F64"))
    assert found.max_absolute is None
    assert found.max_relative == 2
    assert found.relative_l2 is None


def test_large_integers_are_subtracted_exactly(tmp_path: Path) -> None:
    lowest, highest = 2**63, 2**63 - 1
    found = numbers_of(tmp_path, raw("I64", lowest, 5), raw("I64", highest, 6))
    assert found.max_absolute == 2**64 - 1
    found = numbers_of(tmp_path, raw("U64", 2**64 - 1), raw("U64", 2**64 - 2))
    assert found.max_absolute == 1
    assert found.ulp == ()


def test_complex_elements_count_by_their_parts(tmp_path: Path) -> None:
    left = Stored("C64", (2,), struct.pack("<4f", 1, 2, 3, 4))
    right = Stored("C64", (2,), struct.pack("<4f", 1, 2, 3.5, 6))
    found = numbers_of(tmp_path, left, right)
    assert (found.elements, found.differing, found.first_index) == (2, 1, (1,))
    assert found.max_absolute == 2


@each_row(
    ("dtype", "one", "other", "gap", "steps"),
    [
        ("BF16", 0x3F80, 0x3F81, 2**-7, 1),
        ("F16", 0x3C00, 0x3C01, 2**-10, 1),
        ("F8_E5M2", 0x3C, 0x3D, 0.25, 1),
        ("F8_E4M3", 0x38, 0xB8, 2.0, 0x70),
        ("F8_E4M3FNUZ", 0x40, 0x41, 0.125, 1),
        ("F8_E5M2FNUZ", 0x40, 0x41, 0.25, 1),
        ("F8_E8M0", 127, 129, 3.0, 2),
        ("BOOL", 0, 1, 1, None),
        ("U8", 3, 250, 247, None),
        ("I8", 0xFF, 1, 2, None),
    ],
)
def test_small_types_are_widened_exactly(
    tmp_path: Path, dtype: str, one: int, other: int, gap: float, steps: int | None
) -> None:
    found = numbers_of(tmp_path, raw(dtype, one), raw(dtype, other))
    assert found.max_absolute == gap
    assert [share.distance for share in found.ulp] == ([] if steps is None else [steps] * 4)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("F8_E5M2", "float8_e5m2"),
        ("F8_E4M3", "float8_e4m3fn"),
        ("F8_E4M3FNUZ", "float8_e4m3fnuz"),
        ("F8_E5M2FNUZ", "float8_e5m2fnuz"),
        ("F8_E8M0", "float8_e8m0fnu"),
    ],
)
def test_tables_of_one_byte_floats_are_those_of_torch(dtype: str, name: str) -> None:
    import torch  # noqa: PLC0415 - slow to import

    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    expected = codes.view(getattr(torch, name)).to(torch.float32).numpy()
    ours = ELEMENT_TYPES[dtype].numbers(np.arange(256, dtype=np.uint8))
    np.testing.assert_array_equal(ours, expected)
