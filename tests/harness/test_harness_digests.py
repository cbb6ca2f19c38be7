"""The digest of all parameters; the device's half is arithmetic, so the CPU can check it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import pytest
import torch
from each_row import each_row
from harness_digest import parameters_digest, polynomial_of
from hypothesis import given
from hypothesis import strategies as st
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from gate.harness import tensor_digests
from gate.harness.recording.state import TensorOrder
from gate.harness.tensor_digests import (
    CHUNK_WORDS,
    MULTIPLIER,
    HostCopies,
    chunk_sums,
    finish_all,
    start_parameters,
)

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
    tensor_digests = {digest(flipped(tensor, 57, bit)) for bit in range(32)} | {digest(tensor)}
    assert len(tensor_digests) == 33


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


def test_a_parameter_without_memory_is_left_out_and_told() -> None:
    left_out: list[str] = []
    parameters_digest([torch.ones(1), torch.empty(2, device="meta")], left_out.append)
    assert left_out == [
        "parameter 1 is left out of the digest: tensors without plain memory are not supported"
    ]


@given(st.lists(words, max_size=20))
def test_the_polynomial_is_what_its_formula_says(values: list[int]) -> None:
    expected = sum(value * MULTIPLIER**place for place, value in enumerate(values))
    assert polynomial_of(int32(values)) == expected % 2**64


@given(st.lists(words, min_size=1, max_size=20), st.data())
def test_the_polynomial_sees_every_flipped_bit(values: list[int], data: st.DataObject) -> None:
    tensor = int32(values)
    index = data.draw(st.integers(0, len(values) - 1))
    bit = data.draw(st.integers(0, 31))
    assert polynomial_of(tensor) != polynomial_of(flipped(tensor, index, bit))


@given(st.lists(words, min_size=2, max_size=20, unique=True), st.data())
def test_the_polynomial_sees_every_swap(values: list[int], data: st.DataObject) -> None:
    one, other = data.draw(st.permutations(range(len(values))))[:2]
    swapped = list(values)
    swapped[one], swapped[other] = values[other], values[one]
    assert polynomial_of(int32(values)) != polynomial_of(int32(swapped))


def test_the_hardest_swap_over_chunks_is_seen() -> None:
    """Only the highest bit differs, a power of two apart: the fewest factors stay odd."""
    tensor = torch.zeros(CHUNK_WORDS + 1)
    tensor[0] = -0.0
    swapped = torch.zeros(CHUNK_WORDS + 1)
    swapped[CHUNK_WORDS] = -0.0
    assert polynomial_of(tensor) != polynomial_of(swapped)


@each_row("dtype", [torch.bool, torch.int8, torch.bfloat16, torch.float64, torch.complex128])
def test_the_polynomial_takes_every_width(dtype: torch.dtype) -> None:
    tensor = torch.tensor([0, 1, 0, 0], dtype=dtype)
    assert polynomial_of(tensor) != polynomial_of(tensor.roll(1))


def test_a_digest_that_was_sent_is_of_the_tensors_as_they_were() -> None:
    """The training goes on before it is finished."""
    tensor = torch.ones(100)
    started = start_parameters([tensor], print)
    copies = HostCopies([started])
    tensor.zero_()
    assert finish_all([started], copies) == [parameters_digest([torch.ones(100)], print)]


DTYPES = (torch.int8, torch.bfloat16, torch.float32, torch.int64, torch.complex128)


@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(0, 7), max_size=4),
    seed=st.integers(0, 2**32 - 1),
    turned=st.booleans(),
)
def test_the_polynomial_is_that_of_the_words_in_row_major_order(
    dtype: torch.dtype, shape: list[int], seed: int, *, turned: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    size = torch.empty((), dtype=dtype).element_size()
    count = math.prod(shape)
    data = torch.randint(0, 256, (count * size,), dtype=torch.uint8, generator=generator)
    tensor = data.view(dtype).reshape(shape)
    strided = tensor.mT.contiguous().mT if turned and len(shape) > 1 else tensor
    assert polynomial_of(strided) == by_hand(bytes(data.tolist()), min(size, 4))


def by_hand(data: bytes, width: int) -> int:
    """P over little-endian signed words of this many bytes."""
    numbers = (
        int.from_bytes(data[at : at + width], "little", signed=True)
        for at in range(0, len(data), width)
    )
    return sum(n * pow(MULTIPLIER, at, 2**64) for at, n in enumerate(numbers)) % 2**64


@pytest.mark.parametrize("words", [CHUNK_WORDS, CHUNK_WORDS + 1, 2 * CHUNK_WORDS + 3])
def test_chunks_are_put_together_to_the_polynomial_of_the_whole(words: int) -> None:
    """Most words are 0, so that a sum over a few says what all of them give."""
    places = {0, 5, CHUNK_WORDS - 1, words // 2, words - 1}
    tensor = torch.zeros(words, dtype=torch.int32)
    for place in places:
        tensor[place] = place + 3 - 2**20
    expected = sum((place + 3 - 2**20) * pow(MULTIPLIER, place, 2**64) for place in places)
    assert polynomial_of(tensor) == expected % 2**64


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's own lacks types
    """Counts what a device would have to run; a view runs nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # as above
        self.names: list[str] = []

    def __torch_dispatch__(
        self,
        func: OpOverload[..., object],
        _types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if not func.is_view:
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("words", "launches"), [(0, 0), (1, 2), (CHUNK_WORDS + 1, 4)])
def test_a_chunk_is_two_launches(words: int, launches: int) -> None:
    chunk_sums(torch.ones(CHUNK_WORDS))  # the powers are made once
    tensor = torch.ones(words)
    with Launches() as counted:
        chunk_sums(tensor)
    assert counted.names == ["aten.mul.Tensor", "aten.sum.default"] * (launches // 2)


def test_a_device_is_warm_for_its_largest_tensor_once_an_optimizer_has_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The place is found before any step is timed; the host plays the device."""
    device = torch.device("cpu")
    tensor_digests._powers_of.pop(device, None)
    monkeypatch.setattr(tensor_digests, "_on_host", lambda _: False)
    optimizer = torch.optim.SGD([torch.ones(3), torch.ones(100)])
    TensorOrder().optimizer_key(optimizer, 0)
    assert tensor_digests._powers_of[device].numel() == 128


def test_small_tensors_ask_for_few_powers() -> None:
    powers = tensor_digests._powers
    device = torch.device("cpu")
    tensor_digests._powers_of.pop(device, None)  # as in a fresh process
    assert powers(device, 100).numel() == 128
    assert powers(device, 1).numel() == 128
    grown = powers(device, 1000)
    assert grown.numel() == 1024
    expected = [pow(MULTIPLIER, place, 2**64) for place in range(1024)]
    assert [int(power) % 2**64 for power in grown] == expected


@pytest.mark.parametrize("fast", [False, True])
def test_digests_of_a_device_are_put_together_from_one_copy(
    monkeypatch: pytest.MonkeyPatch, *, fast: bool
) -> None:
    """The host plays the device: nothing but the place of the sums differs."""
    monkeypatch.setattr(tensor_digests, "_on_host", lambda _: False)
    monkeypatch.setattr(tensor_digests, "CHUNK_WORDS", 4)
    tensors = [torch.arange(11.0), torch.ones(0), torch.ones(2, 3).t(), torch.eye(3).to_sparse()]
    started = [
        tensor_digests.StartedDigest([(str(n), each)], "x", print, fast=fast)
        for n, each in enumerate(tensors)
    ]
    copies: list[int] = []
    plain_stack = torch.stack

    def stack(parts: list[torch.Tensor]) -> torch.Tensor:
        copies.append(len(parts))
        return plain_stack(parts)

    monkeypatch.setattr(torch, "stack", stack)
    found = tensor_digests.finish_all(started)
    assert copies == [3 + 0 + 2 + 3 + 1]  # chunks of 4 words; indices are of 8 bytes, 2 words each
    name = "0 " if fast else ""
    body = by_hand(tensors[0].numpy().tobytes(), 4).to_bytes(8, "little")
    expected = hashlib.sha256(f"{name}torch.float32 (11,)\n".encode() + body).hexdigest()
    assert found[0] == f"poly64:{expected}"
    assert len(set(found)) == len(found)
