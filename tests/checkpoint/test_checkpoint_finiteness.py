"""NaN and infinity in saved leaves of every floating type, against torch's own counts."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from gate.checkpoint.leaves import HeldBytes, Leaf, TensorLeaf, ValueLeaf
from gate.checkpoint.numbers import NotFiniteLeaf, not_finite_leaves

NUMPY = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}


def _tensor(path: str, dtype: str, data: bytes, shape: tuple[int, ...]) -> TensorLeaf:
    return TensorLeaf(path, dtype, shape, HeldBytes(data))


def _found(*leaves: Leaf, sentinels: bool = False) -> tuple[NotFiniteLeaf, ...]:
    return not_finite_leaves(leaves, 1, sentinels=sentinels)


@given(st.sampled_from(sorted(NUMPY)), st.lists(st.floats(width=16), min_size=1, max_size=40))
def test_every_nan_and_infinity_is_counted_and_nothing_else(
    dtype: str, numbers: list[float]
) -> None:
    data = np.array(numbers, NUMPY[dtype]).tobytes()
    nan, infinite = sum(map(math.isnan, numbers)), sum(map(math.isinf, numbers))
    expected = (NotFiniteLeaf("/model/w", nan, infinite),) if nan or infinite else ()
    assert _found(_tensor("/model/w", dtype, data, (len(numbers),))) == expected


def test_finite_numbers_whose_sum_runs_over_are_finite() -> None:
    data = np.full(64, np.finfo("f4").max, "<f4").tobytes()
    assert _found(_tensor("/model/w", "F32", data, (64,))) == ()


@each_row(
    ("dtype", "bits", "nan", "infinite"),
    [
        ("BF16", struct.pack("<4H", 0x7F80, 0xFF80, 0x7FC1, 0x3F80), 1, 2),
        ("F8_E5M2", bytes((0x7C, 0xFC, 0x7D, 0x3C)), 1, 2),
        ("F8_E4M3", bytes((0x7F, 0xFF, 0x7E)), 2, 0),
        ("F8_E4M3FNUZ", bytes((0x80, 0x7F)), 1, 0),
        ("F8_E5M2FNUZ", bytes((0x80, 0x7F)), 1, 0),
        ("F8_E8M0", bytes((0xFF, 0xFE)), 1, 0),
        ("C64", np.array([complex("nan"), 1j, complex(0, float("inf"))], "<c8").tobytes(), 1, 1),
    ],
)
def test_narrow_and_complex_types_have_their_own_patterns(
    dtype: str, bits: bytes, nan: int, infinite: int
) -> None:
    leaf = _tensor("/model/w", dtype, bits, (len(bits),))
    assert _found(leaf) == (NotFiniteLeaf("/model/w", nan, infinite),)


def test_whole_numbers_and_texts_hold_neither() -> None:
    ones = _tensor("/model/mask", "I32", b"\xff" * 8, (2,))
    assert _found(ones, ValueLeaf("/note", "text", b"nan")) == ()


def test_a_plain_number_counts_too() -> None:
    rate = ValueLeaf("/optimizer/param_groups[0]/lr", "float", struct.pack("<d", math.inf))
    assert _found(rate, sentinels=True) == (NotFiniteLeaf(rate.path, 0, 1),)


@pytest.mark.parametrize(("number", "told"), [(math.inf, False), (math.nan, True)])
def test_no_best_value_yet_is_passed_over_in_what_a_script_saves(
    number: float, *, told: bool
) -> None:
    best = ValueLeaf("/scheduler/best", "float", struct.pack("<d", number))
    assert bool(_found(best, sentinels=True)) == told
    assert _found(best)


def test_equal_bytes_under_two_names_are_told_twice() -> None:
    shared = HeldBytes(np.array([np.nan], "<f4").tobytes())
    names = [leaf.path for leaf in _found(
        TensorLeaf("/model/a", "F32", (1,), shared), TensorLeaf("/model/b", "F32", (1,), shared)
    )]  # fmt: skip
    assert names == ["/model/a", "/model/b"]
