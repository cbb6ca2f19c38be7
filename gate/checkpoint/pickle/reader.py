"""Interpret a pickle as data: no name is imported, nothing is called, and all work is limited.

Each opcode has a handler, which takes the position after the opcode and returns the position of the
next one. Source: the opcode table in Python's `pickletools`. Only opcodes that protocols 2 to 5
write are supported.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from gate.checkpoint.pickle.calls import (
    CALLS,
    GlobalNode,
    MapNode,
    OpaqueNode,
    SetNode,
    attributes_of,
    fault,
    left_out_of,
    opaque_call,
)
from gate.checkpoint.pickle.pickle_machine import CONTAINERS_EACH, MAX_CONTAINERS, Machine
from gate.checkpoint.pickle.reached import check_reached
from gate.checkpoint.pickle.tensor_nodes import NUMPY_CALLS, SPECIAL_CALLS, ArrayNode, DtypeNode
from gate.checkpoint.pickle.tensor_runs import tensor_run

# returned by the handler of STOP; no position in a pickle is negative
NO_MORE = -1
U16 = struct.Struct("<H").unpack_from
U32 = struct.Struct("<I").unpack_from
# BININT alone is signed; the shorter integers are not (pickletools, `int4` and `uint1`, `uint2`).
I32 = struct.Struct("<i").unpack_from
U64 = struct.Struct("<Q").unpack_from
# BINFLOAT is the one big-endian field of a pickle (pickletools, `float8`).
F64 = struct.Struct(">d").unpack_from
# Calls that stand for more than an opaque object: containers, NumPy values, and all kinds of
# tensors.
_CALLS: Final = {**CALLS, **NUMPY_CALLS, **SPECIAL_CALLS}

Handler = Callable[[Machine, int], int]


def _constant(make: Callable[[], object]) -> Handler:
    def push(machine: Machine, position: int) -> int:
        machine.stack.append(make())
        return position

    return push


def _container(make: Callable[[], object]) -> Handler:
    def push(machine: Machine, position: int) -> int:
        machine.push_container(make())
        return position

    return push


def _number(read: Callable[[bytes, int], tuple[object, ...]], width: int) -> Handler:
    def push(machine: Machine, position: int) -> int:
        machine.stack.append(read(machine.data, position)[0])
        return position + width

    return push


def _sized(
    take: Callable[[Machine, int, int], int],
    read: Callable[[bytes, int], tuple[int, ...]],
    width: int,
) -> Handler:
    def push(machine: Machine, position: int) -> int:
        return take(machine, position + width, read(machine.data, position)[0])

    return push


def _byte(data: bytes, position: int) -> tuple[int, ...]:
    return (data[position],)


def _small_integer(machine: Machine, position: int) -> int:
    """Push a one-byte integer, the most frequent number, without the extra calls of `_number`."""
    machine.stack.append(machine.data[position])
    return position + 1


def _stop(machine: Machine, position: int) -> int:
    machine.end = position
    return NO_MORE


def _text(machine: Machine, position: int) -> int:
    """Push a BINUNICODE text, the most frequent opcode with a length, without using `_sized`."""
    data = machine.data
    start = position + 4
    # The length is only a claim of the file. A slice beyond the end would be shorter instead of an
    # error.
    end: int = start + U32(data, position)[0]
    if end > len(data):
        raise IndexError
    machine.stack.append(data[start:end].decode("utf-8", "surrogatepass"))
    return end


def _frame(machine: Machine, position: int) -> int:
    """Check that a frame is not longer than the rest of the pickle, as Python's reader does."""
    start = position + 8
    # A frame only tells a reader of streams how much to fetch (PEP 3154). So its length is checked
    # and otherwise ignored.
    if start + U64(machine.data, position)[0] > len(machine.data):
        raise IndexError
    return start


def _mark(machine: Machine, position: int) -> int:
    # each group has its own stack, so that no opcode can take values from below the mark
    machine.marks.append(machine.stack)
    machine.stack = []
    is_text = machine.in_runs and machine.data.startswith(BINUNICODE, position)
    return _tensors(machine, position) if is_text else position


def _tensors(machine: Machine, position: int) -> int:
    """Read as many names and tensors as possible in one piece; they are most of a large state."""
    run = tensor_run(machine.data, position, machine.memo)
    if (
        run is None
        # a run that would overlap the memo numbers of an earlier run is left to the single opcodes
        or run.first < machine.runs_end
        or machine.containers + CONTAINERS_EACH * len(run.tensors) > MAX_CONTAINERS
    ):
        return position
    machine.push_run(run)
    return run.end


def _pop(machine: Machine, position: int) -> int:
    # POP on an empty group removes its mark, as in Python's own reader
    if machine.stack:
        machine.stack.pop()
    else:
        machine.pop_mark()
    return position


def _pop_mark(machine: Machine, position: int) -> int:
    machine.pop_mark()
    return position


def _duplicate(machine: Machine, position: int) -> int:
    machine.stack.append(machine.stack[-1])
    return position


def _tuple(machine: Machine, position: int) -> int:
    items = tuple(machine.pop_mark())
    machine.stack.append(items)
    return position


def _short_tuple(length: int) -> Handler:
    def push(machine: Machine, position: int) -> int:
        stack = machine.stack
        # `stack[-3:]` of a shorter stack would silently give a shorter tuple
        if len(stack) < length:
            raise IndexError
        stack[-length:] = [tuple(stack[-length:])]
        return position

    return push


def _frozen_set(machine: Machine, position: int) -> int:
    items = machine.pop_mark()
    machine.push_container(SetNode(items))
    return position


def _global(machine: Machine, position: int) -> int:
    """Push the name in the next two lines: the module, and the name in it."""
    first = machine.data.find(b"\n", position)
    second = machine.data.find(b"\n", first + 1)
    if first < 0 or second < 0:
        raise IndexError
    # The name only becomes a node. Importing it is how a pickle takes over a process (CWE-502).
    module, name = machine.data[position:first], machine.data[first + 1 : second]
    machine.push_name(module.decode("utf-8"), name.decode("utf-8"))
    return second + 1


def _stack_global(machine: Machine, position: int) -> int:
    name, module = machine.stack.pop(), machine.stack.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        raise fault("refers to a name that is not text")
    machine.push_name(module, name)
    return position


def _extend(machine: Machine, items: list[object]) -> None:
    target = machine.stack[-1]
    machine.check_not_given(target)
    if isinstance(target, list):
        target.extend(items)
    elif type(target) is OpaqueNode:
        target.items.extend(items)
    else:
        raise fault("adds items to something that cannot hold any")


def _append(machine: Machine, position: int) -> int:
    item = machine.stack.pop()
    _extend(machine, [item])
    return position


def _append_many(machine: Machine, position: int) -> int:
    items = machine.pop_mark()
    _extend(machine, items)
    return position


def _add_members(machine: Machine, position: int) -> int:
    """ADDITEMS: add members to a set; no other node has the method that Python would call."""
    items = machine.pop_mark()
    target = machine.stack[-1]
    machine.check_not_given(target)
    if not isinstance(target, SetNode):
        raise fault("adds items to something that cannot hold any")
    target.items.extend(items)
    return position


def _extend_pairs(machine: Machine, items: list[object]) -> None:
    target = machine.stack[-1]
    machine.check_not_given(target)
    # The check is for exactly `OpaqueNode`: a `PartsNode` is a tensor, and torch would change its
    # elements.
    if not (isinstance(target, MapNode) or type(target) is OpaqueNode) or len(items) % 2:
        raise fault("sets keys in something that cannot have any")
    # Pairs and not a dictionary, for two reasons. Keys may not be hashable here. And a dictionary
    # would silently drop the first of two equal keys, while two pairs give the same path twice,
    # which is an error.
    target.pairs.extend(zip(items[::2], items[1::2], strict=True))


def _set_item(machine: Machine, position: int) -> int:
    value, key = machine.stack.pop(), machine.stack.pop()
    _extend_pairs(machine, [key, value])
    return position


def _set_items(machine: Machine, position: int) -> int:
    items = machine.pop_mark()
    _extend_pairs(machine, items)
    return position


def _put(machine: Machine, position: int) -> int:
    """BINPUT: remember the top of the stack under a one-byte number."""
    machine.memo[machine.data[position]] = machine.stack[-1]
    return position + 1


def _long_put(machine: Machine, position: int) -> int:
    """LONG_BINPUT: remember the top of the stack under a four-byte number."""
    # The memo is a dictionary, so any 32-bit number costs one entry. An array that grows to the
    # highest number exhausts memory (CVE-2018-20406 in Python's own reader).
    machine.memo[U32(machine.data, position)[0]] = machine.stack[-1]
    return position + 4


def _memoize(machine: Machine, position: int) -> int:
    """MEMOIZE: remember the top of the stack under the next number."""
    # the next number is the size of the memo, so the entries of runs have to be in it
    machine.remember_runs()
    machine.memo[len(machine.memo)] = machine.stack[-1]
    return position


def _get(machine: Machine, position: int) -> int:
    """BINGET: push the value that is remembered under a one-byte number."""
    machine.stack.append(machine.recalled(machine.data[position]))
    return position + 1


def _long_get(machine: Machine, position: int) -> int:
    """LONG_BINGET: push the value that is remembered under a four-byte number."""
    machine.stack.append(machine.recalled(U32(machine.data, position)[0]))
    return position + 4


def _persistent_id(machine: Machine, position: int) -> int:
    machine.refer_outside()
    return position


def _known(function: object, arguments: object) -> object:
    """Return the value that a known call stands for, or None for an opaque object."""
    if isinstance(function, GlobalNode) and isinstance(arguments, tuple):
        known = _CALLS.get(function.key)
        return known(arguments) if known else None
    return None


def _reduce(machine: Machine, position: int) -> int:
    # REDUCE and NEWOBJ are how a pickle runs code. Here they only look up the name in a table.
    arguments, function = machine.stack.pop(), machine.stack.pop()
    made = _known(function, arguments)
    if made is None:
        made = opaque_call(function, arguments)
    machine.give(arguments)
    if type(made) is OpaqueNode:
        machine.push_object(made)
    else:
        machine.push_container(made)
    return position


def _new_object(machine: Machine, position: int) -> int:
    """NEWOBJ: push an object that is made by `__new__` alone.

    The table of known calls does not apply: without `__init__`, a set or a Counter stays empty and
    ignores its arguments.
    """
    arguments, function = machine.stack.pop(), machine.stack.pop()
    machine.push_object(opaque_call(function, arguments, is_new=True))
    machine.give(arguments)
    return position


def _new_object_with_keywords(machine: Machine, position: int) -> int:
    keywords, arguments = machine.stack.pop(), machine.stack.pop()
    made = opaque_call(machine.stack.pop(), arguments, is_new=True)
    made.keywords.append(keywords)
    machine.push_object(made)
    machine.give(arguments)
    machine.give(keywords)
    return position


def _build(machine: Machine, position: int) -> int:
    """BUILD: add a state to an object, or attributes to a map.

    Of a map's attributes the versions that `state_dict()` adds are left out.
    """
    state = machine.stack.pop()
    target = machine.stack[-1]
    machine.check_not_given(target)
    machine.give(state)
    # Python would call `__setstate__` here. Its argument is kept as data instead.
    if isinstance(target, ArrayNode | DtypeNode) or type(target) is OpaqueNode:
        target.states.append(state)
    elif isinstance(target, MapNode):
        target.attributes.extend(attributes_of(state))
        for versions in left_out_of(state):
            machine.give(versions)
    else:
        raise fault("sets attributes of something that cannot have any")
    return position


# These opcodes are left out on purpose: EXT1 to EXT4 (names from a registry of the loading
# process), OBJ and INST (older forms of calls), NEXT_BUFFER and READONLY_BUFFER (bytes from outside
# the file), and the text opcodes of protocol 0.
_BY_CODE: Final[dict[bytes, Handler]] = {
    b"\x95": _frame,  # FRAME
    b".": _stop,  # STOP
    b"N": _constant(lambda: None),  # NONE
    b"\x88": _constant(lambda: True),  # NEWTRUE
    b"\x89": _constant(lambda: False),  # NEWFALSE
    b")": _constant(lambda: ()),  # EMPTY_TUPLE
    b"]": _container(list),  # EMPTY_LIST
    b"}": _container(MapNode),  # EMPTY_DICT
    b"\x8f": _container(lambda: SetNode([])),  # EMPTY_SET
    b"J": _number(I32, 4),  # BININT
    b"K": _small_integer,  # BININT1
    b"M": _number(U16, 2),  # BININT2
    b"G": _number(F64, 8),  # BINFLOAT
    b"\x8a": _sized(Machine.push_integer, _byte, 1),  # LONG1
    b"\x8b": _sized(Machine.push_integer, U32, 4),  # LONG4
    b"\x8c": _sized(Machine.push_text, _byte, 1),  # SHORT_BINUNICODE
    b"X": _text,  # BINUNICODE
    b"\x8d": _sized(Machine.push_text, U64, 8),  # BINUNICODE8
    b"C": _sized(Machine.push_bytes, _byte, 1),  # SHORT_BINBYTES
    b"B": _sized(Machine.push_bytes, U32, 4),  # BINBYTES
    b"\x8e": _sized(Machine.push_bytes, U64, 8),  # BINBYTES8
    b"\x96": _sized(Machine.push_bytes, U64, 8),  # BYTEARRAY8
    b"(": _mark,  # MARK
    b"0": _pop,  # POP
    b"1": _pop_mark,  # POP_MARK
    b"2": _duplicate,  # DUP
    b"t": _tuple,  # TUPLE
    b"\x85": _short_tuple(1),  # TUPLE1
    b"\x86": _short_tuple(2),  # TUPLE2
    b"\x87": _short_tuple(3),  # TUPLE3
    b"\x91": _frozen_set,  # FROZENSET
    b"a": _append,  # APPEND
    b"e": _append_many,  # APPENDS
    b"\x90": _add_members,  # ADDITEMS
    b"s": _set_item,  # SETITEM
    b"u": _set_items,  # SETITEMS
    b"q": _put,  # BINPUT
    b"r": _long_put,  # LONG_BINPUT
    b"\x94": _memoize,  # MEMOIZE
    b"h": _get,  # BINGET
    b"j": _long_get,  # LONG_BINGET
    b"c": _global,  # GLOBAL
    b"\x93": _stack_global,  # STACK_GLOBAL
    b"Q": _persistent_id,  # BINPERSID
    b"R": _reduce,  # REDUCE
    b"\x81": _new_object,  # NEWOBJ
    b"\x92": _new_object_with_keywords,  # NEWOBJ_EX
    b"b": _build,  # BUILD
}
# A tuple indexed by the opcode's byte, because there may be millions of look-ups.
HANDLERS: Final[tuple[Handler | None, ...]] = tuple(
    _BY_CODE.get(bytes((code,))) for code in range(256)
)


# The limit for one pickle. Its nodes take several times as much memory.
MAX_PICKLE_BYTES = 64 * 1024 * 1024
# A million values take a few opcodes each. This limits the time, which the size of the file does
# not.
MAX_OPCODES = 5_000_000
# the opcode PROTO with each protocol whose opcodes are supported
LONG_BINPUT: Final = ord("r")
BINUNICODE: Final = b"X"
HEADS: Final = frozenset(bytes((0x80, number)) for number in range(2, 6))


def read_pickle(data: bytes) -> object:
    """Return the value of a pickle that fills `data`: plain values, and the nodes of `calls.py`.

    Raises `StateError` for a pickle that is truncated, too long or malformed, or that uses an
    opcode which no state needs. The caller limits the size of `data`.
    """
    return whole_pickle(data).stack[0]


def whole_pickle(data: bytes) -> Machine:
    """Return the machine after a pickle that fills `data`; its stack has only the value."""
    machine = interpret(data, 0)
    if machine.end != len(data):
        raise fault("ends with unused values or trailing bytes")
    return machine


def read_pickle_at(data: bytes, start: int) -> tuple[object, int]:
    """Return the value of a pickle that begins at `start`, and the position after the pickle."""
    machine = interpret(data, start)
    return machine.stack[0], machine.end


def interpret(data: bytes, start: int, *, in_runs: bool = True) -> Machine:
    """Return the machine after a pickle that begins at `start`; its stack has only the value.

    With `in_runs=False` every opcode is read alone, with the same result. Raises the errors of
    `read_pickle`.
    """
    if data[start : start + 2] not in HEADS:
        raise fault("is not a pickle of protocol 2 to 5")
    machine = Machine(data, in_runs=in_runs)
    run_opcodes(machine, start + 2)
    return machine


def run_opcodes(machine: Machine, start: int) -> None:
    """Execute the opcodes from `start` to STOP, and check that exactly one value remains."""
    try:
        _run(machine, start)
    # Handlers do not check how many bytes or values are left. This catches the error for all of
    # them.
    except (IndexError, struct.error) as error:
        raise fault("its pickle is truncated or takes a value from an empty stack") from error
    except UnicodeDecodeError as error:
        raise fault("its pickle has text that is not UTF-8") from error
    if machine.marks or len(machine.stack) != 1:
        raise fault("ends with unused values or trailing bytes")
    check_reached(machine.stack[0], machine.objects, machine.names)


def _run(machine: Machine, position: int) -> None:
    """Execute one opcode after the other.

    No handler recurses, so this loop limits all the work.
    """
    data, handlers, memo = machine.data, HANDLERS, machine.memo
    for _ in range(MAX_OPCODES):
        code = data[position]
        # a quarter of all opcodes in a state, so the call of a handler is saved
        if code == LONG_BINPUT:
            memo[U32(data, position + 1)[0]] = machine.stack[-1]
            position += 5
            continue
        handler = handlers[code]
        # An unknown opcode cannot be skipped: only its definition says how many bytes belong to it.
        if handler is None:
            raise fault(f"uses the opcode {_opcode_name(code)}, which no state needs")
        position = handler(machine, position + 1)
        if position == NO_MORE:
            return
    raise fault(f"has more than {MAX_OPCODES:,} opcodes")


def _opcode_name(code: int) -> str:
    import pickletools  # noqa: PLC0415 - slow to import, and only this sentence needs it

    names = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
    return names.get(code, f"{code:#04x}")
