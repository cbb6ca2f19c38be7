"""What the fingerprints' digests see: every bit, every position, every name."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from gate.harness.output import Problems
from gate.harness.recording.observer import random_states, structure_digest
from gate.harness.recording.state import TensorOrder
from gate.harness.tensor_digests import COLUMNS, ROWS, grid_body, nested_digest

WORDS = COLUMNS * 3 + 17
places = st.integers(0, WORDS - 1)


def words() -> torch.Tensor:
    return torch.randint(-(2**62), 2**62, (WORDS,), generator=torch.Generator().manual_seed(1))


def batch_digest(value: object) -> str:
    problems: list[str] = []
    found = nested_digest(value, problems.append)
    assert problems == []
    return found


@given(places, st.integers(0, 63))
def test_the_grid_sees_every_flipped_bit(place: int, bit: int) -> None:
    changed = words()
    changed[place] ^= -(2**63) if bit == 63 else 1 << bit
    assert grid_body(changed) != grid_body(words())


@given(places, places)
def test_the_grid_sees_every_swap(one: int, other: int) -> None:
    swapped = words()
    swapped[one], swapped[other] = words()[other], words()[one]
    assert (grid_body(swapped) == grid_body(words())) is (one == other)


def test_the_grid_sees_swapped_rows_and_blocks() -> None:
    tensor = words()[: COLUMNS * 3].view(3, COLUMNS)
    assert grid_body(tensor[[1, 0, 2]]) != grid_body(tensor)
    big = torch.arange(2 * ROWS * COLUMNS)
    assert grid_body(big.roll(ROWS * COLUMNS)) != grid_body(big)


@each_row("dtype", [torch.bool, torch.int8, torch.bfloat16, torch.float64, torch.complex128])
def test_the_grid_takes_every_width_and_any_alignment(dtype: torch.dtype) -> None:
    tensor = torch.zeros(70_001, dtype=dtype)
    tensor[40_000] = 1
    assert grid_body(tensor[1:]) == grid_body(tensor[1:].clone())
    assert grid_body(tensor[1:]) != grid_body(tensor[:-1])


@each_row(
    "other",
    [
        {"x": torch.tensor([2.0, 1.0]), "n": 3},
        {"y": torch.tensor([1.0, 2.0]), "n": 3},
        {"x": torch.tensor([1.0, 2.0]), "n": 4},
        {"x": torch.tensor([1, 2]), "n": 3},
        {"x": np.array([1.0, 2.0], dtype=np.float32), "n": 3},
        [torch.tensor([1.0, 2.0]), 3],
    ],
)
def test_order_names_numbers_and_types_of_a_batch_count(other: object) -> None:
    batch = {"x": torch.tensor([1.0, 2.0]), "n": 3}
    assert batch_digest(batch) == batch_digest(dict(batch))
    assert batch_digest(batch) != batch_digest(other)


def test_a_shuffled_array_and_a_shuffled_list_are_other_batches() -> None:
    assert batch_digest(np.arange(3)) != batch_digest(np.array([0, 2, 1]))
    assert batch_digest(["a", "b"]) != batch_digest(["b", "a"])


def test_an_object_counts_by_its_type_alone() -> None:
    """Its text may hold an address, which differs in every process."""
    assert batch_digest([object()]) == batch_digest([object()])


@pytest.mark.parametrize(
    ("fingerprint", "draw"),
    [
        ("random.python", random.random),
        ("random.python", lambda: random.gauss(0, 1)),
        ("random.numpy", np.random.rand),
        ("random.torch", lambda: torch.rand(1)),
    ],
)
def test_a_draw_moves_its_own_fingerprint_alone(
    fingerprint: str, draw: Callable[[], object]
) -> None:
    before = random_states(Problems())
    assert random_states(Problems()) == before
    draw()
    after = random_states(Problems())
    assert [name for name in before if before[name] != after[name]] == [fingerprint]


def test_the_structure_tells_names_and_not_the_order_in_which_a_set_gave_them() -> None:
    model, order = torch.nn.Linear(2, 2), TensorOrder()
    order.learn(model)
    given, reversed_, weight_alone = (
        structure_digest(torch.optim.SGD(parameters), order)
        for parameters in (
            [model.weight, model.bias],
            [model.bias, model.weight],
            [model.weight],
        )
    )
    assert given == reversed_ != weight_alone


@pytest.mark.parametrize(
    "transformed",
    [torch.func.vmap, torch.func.grad, lambda f: torch.func.vmap(torch.func.grad(f))],
    ids=["vmap", "grad", "vmap of grad"],
)
def test_inside_a_transform_of_functions_the_whole_tensor_is_seen(
    transformed: Callable[[Callable[[torch.Tensor], torch.Tensor]], object],
) -> None:
    def digest_inside(values: torch.Tensor) -> str:
        digests = []

        def function(inner: torch.Tensor) -> torch.Tensor:
            digests.append(batch_digest(inner))
            return inner.square().sum()

        transformed(function)(values)  # type: ignore[operator] # whatever it gives is called
        (found,) = digests
        return found

    one = torch.arange(6.0).view(2, 3)
    if transformed is torch.func.grad:
        one = one.T
    other = one.clone()
    other[1, 1] += 1
    assert digest_inside(one) == digest_inside(one.clone()) == batch_digest(one.contiguous())
    assert digest_inside(one) != digest_inside(other)
