"""The digest of all parameters; the device's half is arithmetic, so the CPU can check it."""

from __future__ import annotations

import pytest
import torch
from guest_digest import parameters_digest
from hypothesis import given
from hypothesis import strategies as st

from gate.harness.digests import CHUNK_WORDS, MULTIPLIER, polynomial

words = st.integers(-(2**31), 2**31 - 1)


def digest(*parameters: torch.Tensor) -> str:
    problems: list[str] = []
    found = parameters_digest(parameters, problems.append)
    assert problems == []
    return found


def int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def flipped(tensor: torch.Tensor, index: int, bit: int) -> torch.Tensor:
    changed = tensor.clone()
    changed.view(torch.int32)[index] ^= -(2**31) if bit == 31 else 1 << bit
    return changed


def test_one_flipped_bit_changes_the_digest() -> None:
    tensor = torch.linspace(-1, 1, 100)
    digests = {digest(flipped(tensor, 57, bit)) for bit in range(32)} | {digest(tensor)}
    assert len(digests) == 33


def test_two_swapped_elements_change_the_digest() -> None:
    assert digest(torch.tensor([1.0, 2.0])) != digest(torch.tensor([2.0, 1.0]))


def test_the_order_of_the_parameters_counts() -> None:
    first, second = torch.ones(2), torch.zeros(2)
    assert digest(first, second) != digest(second, first)


@pytest.mark.parametrize(
    "other", [torch.zeros(2, 2), torch.zeros(4, dtype=torch.int32), -torch.zeros(4)]
)
def test_shape_type_and_sign_of_zero_count(other: torch.Tensor) -> None:
    assert digest(torch.zeros(4)) != digest(other)


def test_strides_do_not_count() -> None:
    tensor = torch.randn(3, 4)
    assert digest(tensor.t().contiguous().t()) == digest(tensor)


def test_a_sparse_parameter_is_left_out_and_told() -> None:
    problems: list[str] = []
    parameters_digest([torch.ones(1), torch.eye(2).to_sparse()], problems.append)
    assert problems == [
        "parameter 1 is left out of the digest: layout torch.sparse_coo is not supported"
    ]


@given(st.lists(words, max_size=20))
def test_the_polynomial_is_what_its_formula_says(values: list[int]) -> None:
    expected = sum(value * MULTIPLIER**place for place, value in enumerate(values))
    assert int(polynomial(int32(values))) % 2**64 == expected % 2**64


@given(st.lists(words, min_size=1, max_size=20), st.data())
def test_the_polynomial_sees_every_flipped_bit(values: list[int], data: st.DataObject) -> None:
    tensor = int32(values)
    index = data.draw(st.integers(0, len(values) - 1))
    bit = data.draw(st.integers(0, 31))
    assert polynomial(tensor) != polynomial(flipped(tensor, index, bit))


@given(st.lists(words, min_size=2, max_size=20, unique=True), st.data())
def test_the_polynomial_sees_every_swap(values: list[int], data: st.DataObject) -> None:
    one, other = data.draw(st.permutations(range(len(values))))[:2]
    swapped = list(values)
    swapped[one], swapped[other] = values[other], values[one]
    assert polynomial(int32(values)) != polynomial(int32(swapped))


def test_the_hardest_swap_over_chunks_is_seen() -> None:
    """Only the highest bit differs, a power of two apart: the fewest factors stay odd."""
    tensor = torch.zeros(CHUNK_WORDS + 1)
    tensor[0] = -0.0
    swapped = torch.zeros(CHUNK_WORDS + 1)
    swapped[CHUNK_WORDS] = -0.0
    assert polynomial(tensor) != polynomial(swapped)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int8, torch.bfloat16, torch.float64, torch.complex128]
)
def test_the_polynomial_takes_every_width(dtype: torch.dtype) -> None:
    tensor = torch.tensor([0, 1, 0, 0], dtype=dtype)
    assert polynomial(tensor) != polynomial(tensor.roll(1))
