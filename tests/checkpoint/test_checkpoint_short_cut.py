"""The step that takes a whole tensor out of a pickle leaves what the opcodes one by one leave."""

from __future__ import annotations

import io
import zipfile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gate.checkpoint.pickle.calls import StateError
from gate.checkpoint.pickle.machine import Machine
from gate.checkpoint.pickle.nodes import (
    GlobalNode,
    MapNode,
    OpaqueNode,
    SetNode,
    StorageNode,
    TensorNode,
)
from gate.checkpoint.pickle.reader import run_opcodes
from gate.checkpoint.pickle.tensors import TensorForms

NODES = (GlobalNode, MapNode, OpaqueNode, SetNode, StorageNode, TensorNode)
# What stands first fills the memo to where the short cut begins.
FILLER = {f"first.{index}": torch.zeros(2) for index in range(33)}
LAST = {f"last.{index}": torch.zeros(2 + (index == 3)) for index in range(7)}


class NoForms(TensorForms):
    """Leaves every tensor to the opcodes."""

    def take(self, builder: GlobalNode, position: int) -> None:
        del builder, position


def pickled(state: object, protocol: int = 2) -> bytes:
    held = io.BytesIO()
    torch.save(state, held, pickle_protocol=protocol)
    with zipfile.ZipFile(held) as archive:
        return archive.read("archive/data.pkl")


def outcome(machine: Machine) -> object:
    """The value and the memo as nested tuples that show what is shared, or the fault."""
    try:
        run_opcodes(machine, 2)
    except StateError as error:
        return error.message
    machine.tensors.remember_all()
    seen: dict[int, int] = {}
    remembered = [flat(machine.memo[key], seen) for key in sorted(machine.memo)]
    return flat(machine.stack, seen), machine.end, remembered, flat(machine.storages, seen)


def flat(value: object, seen: dict[int, int]) -> object:
    if isinstance(value, tuple):
        return tuple(flat(item, seen) for item in value)
    if not isinstance(value, (*NODES, list)):
        return type(value), repr(value)
    if id(value) in seen:
        return "the same as", seen[id(value)]
    seen[id(value)] = len(seen)
    if isinstance(value, list):
        return [flat(item, seen) for item in value]
    return type(value), [flat(getattr(value, name), seen) for name in type(value).__slots__]


def both(data: bytes) -> tuple[object, object]:
    slow = Machine(data)
    slow.tensors = NoForms(data, slow.memo, slow.storages)
    return outcome(Machine(data)), outcome(slow)


def takes(data: bytes) -> int:
    """How many tensors the short cut takes."""
    taken: list[object] = []

    class Counting(TensorForms):
        def take(self, builder: GlobalNode, position: int) -> tuple[TensorNode, int] | None:
            found = super().take(builder, position)
            taken.extend([found] if found else [])
            return found

        def take_items(self, builder_key: int, position: int) -> tuple[list[object], int]:
            items, end = super().take_items(builder_key, position)
            taken.extend(items[1::2])
            return items, end

    machine = Machine(data)
    machine.tensors = Counting(data, machine.memo, machine.storages)
    run_opcodes(machine, 2)
    return len(taken)


SHARED = torch.arange(720, dtype=torch.float32)
TENSORS = st.one_of(
    st.builds(
        torch.zeros,
        st.lists(st.integers(0, 300), max_size=2).map(tuple) | st.just((1, 2, 3, 4, 5)),
        dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]),
    ),
    st.just(SHARED[3:9]),
    st.just(SHARED.reshape(24, 30).T),
    st.just(torch.zeros(2, requires_grad=True)),
    st.just(torch.nn.Parameter(torch.zeros(3))),
    st.just(torch.zeros(70_000)[65_536:]),
    st.integers(),
)
STATES = st.lists(TENSORS, max_size=12).map(
    lambda tensors: {**FILLER, **{f"later.{index}": each for index, each in enumerate(tensors)}}
)


@settings(deadline=None, max_examples=30)
@given(STATES, st.sampled_from([2, 4]))
def test_a_state_is_the_same_without_the_short_cut(state: object, protocol: int) -> None:
    short, slow = both(pickled(state, protocol))
    assert short == slow


FILLED = pickled({**FILLER, "scalar": torch.tensor(1.0), "two": torch.zeros(2, 3), **LAST})
WHERE_IT_BEGINS = FILLED.index(b"r\0\1\0\0")


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.tuples(st.integers(WHERE_IT_BEGINS, len(FILLED) - 1), st.integers(0, 255)),
        min_size=1,
        max_size=3,
    )
)
def test_a_damaged_pickle_is_the_same_without_the_short_cut(changes: list[tuple[int, int]]) -> None:
    data = bytearray(FILLED)
    for place, value in changes:
        data[place] = value
    short, slow = both(bytes(data))
    assert short == slow


@pytest.mark.parametrize("bit", [0x01, 0x40])
def test_every_byte_of_a_tensor_counts(bit: int) -> None:
    start = FILLED.index(b"scalar")
    for place in range(start, start + 120):
        data = FILLED[:place] + bytes((FILLED[place] ^ bit,)) + FILLED[place + 1 :]
        short, slow = both(data)
        assert short == slow, place


def test_values_that_a_tensor_left_behind_can_be_recalled() -> None:
    data = pickled({**FILLER, **LAST})
    for place in range(256, 256 + 30):
        recalling = data[:-1] + b"0j" + place.to_bytes(4, "little") + b"."
        short, slow = both(recalling)
        assert short == slow


@pytest.mark.parametrize(
    ("state", "least"),
    [
        ({str(index): torch.zeros(2, 3) for index in range(100)}, 65),
        ({str(index): torch.tensor(1.0) for index in range(100)}, 55),
        ({str(index): torch.nn.Parameter(torch.zeros(1, 1, 1, 2)) for index in range(100)}, 65),
    ],
)
def test_most_tensors_take_the_short_cut(state: object, least: int) -> None:
    assert takes(pickled(state)) >= least
