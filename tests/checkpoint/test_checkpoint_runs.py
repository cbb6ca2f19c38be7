"""Tensors that are read many at once are what they are one by one, whatever the pickle does."""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from dataclasses import fields, is_dataclass

import pytest
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from gate.checkpoint.pickle.calls import StateError
from gate.checkpoint.pickle.reader import interpret
from gate.checkpoint.pickle.tensor_runs import PUTS

# what torch has remembered before the first tensor: the call, the first words of a storage's place
KNOWN = (
    b"\x80\x02}q\x00X\x01\x00\x00\x00aq\x01(ctorch._utils\n_rebuild_tensor_v2\nq\x02"
    b"X\x07\x00\x00\x00storageq\x03ctorch\nFloatStorage\nq\x04ctorch\nHalfStorage\nq\x05"
    b"X\x03\x00\x00\x00cpuq\x06ccollections\nOrderedDict\nq\x07ts"
)
FIRST = 300
COUNT = 12


def text(data: bytes) -> bytes:
    return b"X" + struct.pack("<I", len(data)) + data


def put(number: int) -> bytes:
    return b"r" + struct.pack("<I", number)


def tensor(  # noqa: PLR0913 - a part each
    index: int,
    *,
    first: int = FIRST,
    name: bytes = b"",
    kind: bytes = b"h\x04",
    location: bytes = b"h\x06",
    shape: bytes = b"K\x02K\x03\x86",
    strides: bytes = b"K\x03K\x01\x86",
    gradient: bytes = b"\x89",
) -> bytes:
    """A name and its tensor, as torch writes them, and the numbers that they remember."""
    number = first + PUTS * index
    puts = [put(number + each) for each in range(PUTS)]
    return b"".join((
        text(name or b"layer.%d.weight" % index), puts[0], b"h\x02((h\x03", kind,
        text(b"%d" % index), puts[1], location, b"K\x06t", puts[2], b"QK\x00", shape, puts[3],
        strides, puts[4], gradient, b"h\x07)R", puts[5], b"t", puts[6], b"R", puts[7],
    ))  # fmt: skip


def state(tensors: Sequence[bytes], then: bytes = b"u", last: bytes = b".") -> bytes:
    return KNOWN + b"(" + b"".join(tensors) + then + last


def shown(root: object) -> list[object]:
    """Everything that can be reached, with a number for each thing that has an identity.

    Tuples have none that counts: those of equal sizes are one in a run.
    """
    numbers: dict[int, int] = {}
    kept: list[object] = []
    found: list[object] = []
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if value is None or isinstance(value, bool | int | float | str | bytes):
            found.append((type(value).__name__, value))
            continue
        if id(value) in numbers:
            found.append(numbers[id(value)])
            continue
        if not isinstance(value, tuple):
            # nothing that was looked at goes, so that no other thing gets its number
            kept.append(value)
            numbers[id(value)] = len(numbers)
        parts = (
            [getattr(value, field.name) for field in fields(value)]
            if is_dataclass(value)
            else list(value)  # type: ignore[call-overload]  # lists and tuples are all that is left
        )
        found.append((type(value).__name__, len(parts)))
        waiting.extend(parts)
    return found


def result(data: bytes, *, in_runs: bool) -> object:
    """All that a pickle has become, or how it was refused."""
    try:
        machine = interpret(data, 0, in_runs=in_runs)
    except StateError as error:
        return error.message, error.hint
    machine.remember_runs()
    memo = sorted(machine.memo.items())
    return machine.end, machine.containers, shown([machine.stack, machine.storages, memo])


def is_run(data: bytes) -> bool:
    return bool(interpret(data, 0).runs)


def check(data: bytes) -> None:
    assert result(data, in_runs=True) == result(data, in_runs=False)


def tensors(**changed: bytes) -> list[bytes]:
    return [tensor(index, **changed) for index in range(COUNT)]  # type: ignore[arg-type]  # all of bytes


def test_tensors_as_torch_writes_them_are_read_in_one_piece() -> None:
    data = state(tensors())
    assert is_run(data)
    machine = interpret(data, 0)
    assert [storage.key for storage in machine.storages] == [str(index) for index in range(COUNT)]
    check(data)


@pytest.mark.parametrize("shape", [
    b"K\x02\x85", b"K\x01K\x02K\x03\x87", b"M\x01\x02J\x01\x02\x03\x00\x86",
    b"(K\x01K\x02K\x03K\x04t",
])  # fmt: skip
def test_every_number_of_dimensions_is_read_in_one_piece(shape: bytes) -> None:
    data = state(tensors(shape=shape, strides=shape))
    assert is_run(data)
    check(data)


def test_types_and_gradients_may_differ_from_tensor_to_tensor() -> None:
    mixed = [
        tensor(
            index,
            kind=b"h\x05" if index % 2 else b"h\x04",
            gradient=b"\x88" if index % 3 else b"\x89",
        )
        for index in range(COUNT)
    ]
    assert is_run(state(mixed))
    check(state(mixed))


@each_row("number", range(FIRST, FIRST + 2 * PUTS))
def test_what_a_run_remembers_can_be_recalled(number: int) -> None:
    recalled = text(b"again") + b"j" + struct.pack("<I", number)
    data = state([*tensors(), recalled])
    assert is_run(state(tensors()))
    check(data)


def calls_made(maps: int) -> int:
    """How many functions are called for so many maps of eight tensors each."""
    groups = [
        text(b"m%d" % number) + b"}(" + b"".join(
            tensor(index, first=FIRST + number * 8 * PUTS) for index in range(8)
        ) + b"u"
        for number in range(maps)
    ]  # fmt: skip
    data = state(groups)
    count = 0

    def counted(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    interpret(data, 0)
    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        interpret(data, 0)
    finally:
        sys.setprofile(before)
    return count


def test_the_work_follows_the_number_of_runs() -> None:
    assert calls_made(400) < 2.1 * calls_made(200)


def test_hooks_of_a_run_cannot_be_filled_later() -> None:
    number = FIRST + 5
    data = state([*tensors(), text(b"x") + b"j" + struct.pack("<I", number) + b"K\x01Ns"])
    check(data)
    with pytest.raises(StateError, match="changes a list or map after an object was made of it"):
        interpret(data, 0)


def test_a_later_value_takes_the_number_of_one_of_the_run() -> None:
    number = struct.pack("<I", FIRST + 3)
    check(state([*tensors(), text(b"other") + b"r" + number + b"j" + number]))


def test_the_next_number_counts_what_the_run_remembers() -> None:
    check(state([*tensors(), text(b"x") + b"\x94N"], then=b"u"))


def test_a_second_run_may_follow_and_one_under_the_same_numbers_may_not() -> None:
    for first in (FIRST + COUNT * PUTS, FIRST, FIRST - 1, FIRST + 5, 8):
        second = [tensor(index, first=first) for index in range(COUNT)]
        check(state([*tensors(), b"u(", *second]))


ODD = {
    "a device without bytes": {"location": b"X\x04\0\0\0meta"},
    "a device that is a type": {"location": b"h\x04"},
    "a name that is longer than it says": {"name": b"layer\x00weight"},
    "a name beyond ASCII": {"name": "schlüssel".encode()},
    "a quantized storage": {"kind": b"c" + b"torch\nQInt8Storage\n"},
    "a storage of another package": {"kind": b"cnumpy\nFloatStorage\n"},
    "a type that is none": {"kind": b"h\x03"},
    "a type that nobody remembers": {"kind": b"h\xff"},
    "fewer dimensions than the tuple takes": {"shape": b"K\x02\x86"},
    "more dimensions than the tuple takes": {"shape": b"K\x02K\x03\x85"},
    "more strides than dimensions": {"strides": b"K\x02\x85"},
    "a negative size": {"shape": b"J\xff\xff\xff\xffK\x03\x86"},
    "a size that is half a surrogate of an opcode": {"shape": b"K\x85K\x86\x86"},
}


@each_row("odd", ODD.values(), ids=ODD)
@each_row("place", [0, 9, COUNT - 1])
def test_anything_else_is_read_one_by_one_and_means_the_same(
    odd: dict[str, bytes], place: int
) -> None:
    mixed = tensors()
    mixed[place] = tensor(place, **odd)  # type: ignore[arg-type]  # all of bytes
    check(state(mixed))


def test_a_length_that_lies_about_a_name_or_a_key_is_seen() -> None:
    whole = state(tensors())
    for old, new in ((b"X\x0e\x00\x00\x00layer.3", b"X\x0f\x00\x00\x00layer.3"),
                     (b"X\x01\x00\x00\x003r", b"X\x02\x00\x00\x003r"),
                     (b"X\x01\x00\x00\x003r", b"X\x00\x00\x00\x003r")):  # fmt: skip
        assert whole.count(old) == 1
        check(whole.replace(old, new))


OPCODES = b"(tRrhjXQKMJu)\x85\x86\x87\x88\x89.0"


@given(
    st.lists(
        st.tuples(st.integers(0, 2**13), st.sampled_from(OPCODES) | st.integers(0, 255)),
        min_size=1,
        max_size=4,
    )
)
def test_a_damaged_state_means_the_same_in_both_ways(damage: list[tuple[int, int]]) -> None:
    data = bytearray(state(tensors()))
    for place, value in damage:
        data[place % len(data)] = value
    check(bytes(data))


@given(st.integers(0, 2**13), st.integers(0, 2**13), st.integers(0, 40))
def test_a_part_that_is_moved_means_the_same_in_both_ways(
    source: int, target: int, length: int
) -> None:
    data = state(tensors())
    source, target = source % len(data), target % len(data)
    part = data[source : source + length]
    check(data[:target] + part + data[target + len(part) :])
    check(data[:target] + part + data[target:])


def test_a_call_that_is_swapped_for_a_command_between_two_runs_is_seen() -> None:
    swapped = b"ucposix\nsystem\nq\x020("
    second = [tensor(index, first=FIRST + COUNT * PUTS) for index in range(COUNT)]
    data = state([*tensors(), swapped, *second])
    check(data)
    with pytest.raises(StateError, match=r"calls 'posix\.system' when it is loaded"):
        interpret(data, 0)
