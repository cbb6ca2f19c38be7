"""Interprets a pickle as data: no name is imported, nothing is called, every limit is counted.

A handler is given the position behind its opcode and answers the position of the next one. Source:
the opcode table in Python's `pickletools`; only what protocols 2 to 5 write.
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
from gate.checkpoint.pickle.machine import CONTAINERS_EACH, MAX_CONTAINERS, Machine
from gate.checkpoint.pickle.reached import check_reached
from gate.checkpoint.pickle.tensor_nodes import NUMPY_CALLS, SPECIAL_CALLS, ArrayNode, DtypeNode
from gate.checkpoint.pickle.tensor_runs import tensor_run

# No position is negative, so the end cannot be mistaken for a place in the pickle.
NO_MORE = -1
U16 = struct.Struct("<H").unpack_from
U32 = struct.Struct("<I").unpack_from
# BININT alone is signed; the shorter integers are not (pickletools, `int4` and `uint1`, `uint2`).
I32 = struct.Struct("<i").unpack_from
U64 = struct.Struct("<Q").unpack_from
# BINFLOAT is the one big-endian field of a pickle (pickletools, `float8`).
F64 = struct.Struct(">d").unpack_from
# Every call that stands for more than an object: containers, NumPy, tensors of all kinds.
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
    """The commonest number, without the detour of `_number`."""
    machine.stack.append(machine.data[position])
    return position + 1


def _stop(machine: Machine, position: int) -> int:
    machine.end = position
    return NO_MORE


def _text(machine: Machine, position: int) -> int:
    """The commonest opcode that has a length, without the detours of `_sized`."""
    data = machine.data
    start = position + 4
    # the length is the file's own claim, and a slice behind the end is shorter instead of an error
    end: int = start + U32(data, position)[0]
    if end > len(data):
        raise IndexError
    machine.stack.append(data[start:end].decode("utf-8", "surrogatepass"))
    return end


def _frame(machine: Machine, position: int) -> int:
    """How many bytes follow in one piece: not more than there are, as Python's reader asks too."""
    start = position + 8
    # PEP 3154: a frame only tells a reader of streams how much to fetch, so it is checked and not
    # obeyed
    if start + U64(machine.data, position)[0] > len(machine.data):
        raise IndexError
    return start


def _mark(machine: Machine, position: int) -> int:
    # a stack of its own for each group, so that no opcode takes values from below the mark
    machine.marks.append(machine.stack)
    machine.stack = []
    is_text = machine.in_runs and machine.data.startswith(BINUNICODE, position)
    return _tensors(machine, position) if is_text else position


def _tensors(machine: Machine, position: int) -> int:
    """As many names and tensors as can be read in one piece: most of a large state."""
    run = tensor_run(machine.data, position, machine.memo)
    if (
        run is None
        or run.first < machine.runs_end
        or machine.containers + CONTAINERS_EACH * len(run.tensors) > MAX_CONTAINERS
    ):
        return position
    machine.push_run(run)
    return run.end


def _pop(machine: Machine, position: int) -> int:
    # POP on an empty group takes its mark away, as Python's own reader does
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
        # `stack[-3:]` of two values is those two: the tuple would silently be shorter
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
    """Two lines of text: the module and the name in it."""
    first = machine.data.find(b"\n", position)
    second = machine.data.find(b"\n", first + 1)
    if first < 0 or second < 0:
        raise IndexError
    # a name becomes a node; importing it is where a pickle takes over a process (CWE-502)
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
    """ADDITEMS: a set and nothing else has what it calls."""
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
    # a tensor in parts takes none: torch would change its elements
    if not (isinstance(target, MapNode) or type(target) is OpaqueNode) or len(items) % 2:
        raise fault("sets keys in something that cannot have any")
    # pairs instead of a dictionary: keys here may not be hashable, and of two equal keys a
    # dictionary drops the first unseen, while both of these meet again as one path that is there
    # twice
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
    """BINPUT: remember the top of the stack under a number of one byte."""
    machine.memo[machine.data[position]] = machine.stack[-1]
    return position + 1


def _long_put(machine: Machine, position: int) -> int:
    """LONG_BINPUT: the same under a number of four bytes."""
    # a dictionary, so that a number of 32 bits costs one entry: with an array that grows to the
    # highest number it is memory exhaustion (CVE-2018-20406 in Python's own reader)
    machine.memo[U32(machine.data, position)[0]] = machine.stack[-1]
    return position + 4


def _memoize(machine: Machine, position: int) -> int:
    """MEMOIZE: the same under the next number."""
    machine.remember_runs()
    machine.memo[len(machine.memo)] = machine.stack[-1]
    return position


def _get(machine: Machine, position: int) -> int:
    """BINGET: push what is remembered under a number of one byte."""
    machine.stack.append(machine.recalled(machine.data[position]))
    return position + 1


def _long_get(machine: Machine, position: int) -> int:
    """LONG_BINGET: the same under a number of four bytes."""
    machine.stack.append(machine.recalled(U32(machine.data, position)[0]))
    return position + 4


def _persistent_id(machine: Machine, position: int) -> int:
    machine.refer_outside()
    return position


def _known(function: object, arguments: object) -> object:
    """The value that a call stands for; None where it is not guessed but stays an object."""
    if isinstance(function, GlobalNode) and isinstance(arguments, tuple):
        known = _CALLS.get(function.key)
        return known(arguments) if known else None
    return None


def _reduce(machine: Machine, position: int) -> int:
    # REDUCE and NEWOBJ are how a pickle runs code: this only looks the name up in a table
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
    """NEWOBJ: `__new__` alone, so that a set or a Counter would be empty whatever it was given."""
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
    """Attributes of a map are kept too, but for the versions that `state_dict()` notes there."""
    state = machine.stack.pop()
    target = machine.stack[-1]
    machine.check_not_given(target)
    machine.give(state)
    # Python would run `__setstate__` here; what it would be given is kept as data instead
    if isinstance(target, ArrayNode | DtypeNode) or type(target) is OpaqueNode:
        target.states.append(state)
    elif isinstance(target, MapNode):
        target.attributes.extend(attributes_of(state))
        for versions in left_out_of(state):
            machine.give(versions)
    else:
        raise fault("sets attributes of something that cannot have any")
    return position


# Left out on purpose: EXT1 to EXT4 (names from a registry of the loading process), OBJ and INST
# (calls in an older form), NEXT_BUFFER and READONLY_BUFFER (bytes from outside the file), and the
# text opcodes of protocol 0.
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
# A tuple indexed by the byte: the lookup is made for each of up to millions of opcodes.
HANDLERS: Final[tuple[Handler | None, ...]] = tuple(
    _BY_CODE.get(bytes((code,))) for code in range(256)
)


# Of one pickle: what it is made into takes several times as much memory.
MAX_PICKLE_BYTES = 64 * 1024 * 1024
# A million values take a few opcodes each; this bounds time where the size of the file does not.
MAX_OPCODES = 5_000_000
# The opcode PROTO and the protocols whose opcodes are known.
LONG_BINPUT: Final = ord("r")
BINUNICODE: Final = b"X"
HEADS: Final = frozenset(bytes((0x80, number)) for number in range(2, 6))


def read_pickle(data: bytes) -> object:
    """The value of a pickle that fills `data`: plain values and the nodes of `pickle.nodes`.

    Raises `StateError` for a pickle that is cut short, too long, malformed, or uses an opcode that
    no state needs. The caller limits the size of `data`.
    """
    return whole_pickle(data).stack[0]


def whole_pickle(data: bytes) -> Machine:
    """The same with all that the pickle referred to; its value is the only one on the stack."""
    machine = interpret(data, 0)
    if machine.end != len(data):
        raise fault("ends with unused values or trailing bytes")
    return machine


def read_pickle_at(data: bytes, start: int) -> tuple[object, int]:
    """The same for a pickle that begins at `start`, and where it ended."""
    machine = interpret(data, start)
    return machine.stack[0], machine.end


def interpret(data: bytes, start: int, *, in_runs: bool = True) -> Machine:
    """The machine after a pickle that begins at `start`; its value is the only one on the stack.

    Without `in_runs` each opcode is read alone, to the same result.

    Raises as `read_pickle` does.
    """
    if data[start : start + 2] not in HEADS:
        raise fault("is not a pickle of protocol 2 to 5")
    machine = Machine(data, in_runs=in_runs)
    run_opcodes(machine, start + 2)
    return machine


def run_opcodes(machine: Machine, start: int) -> None:
    """Let the opcodes from `start` on work until the last one; one value is on the stack then."""
    try:
        _run(machine, start)
    # handlers read on without asking how much is left; that they ran out shows here, for all of
    # them
    except (IndexError, struct.error) as error:
        raise fault("its pickle is truncated or takes a value from an empty stack") from error
    except UnicodeDecodeError as error:
        raise fault("its pickle has text that is not UTF-8") from error
    if machine.marks or len(machine.stack) != 1:
        raise fault("ends with unused values or trailing bytes")
    check_reached(machine.stack[0], machine.objects, machine.names)


def _run(machine: Machine, position: int) -> None:
    """One opcode after the other; this loop bounds the work, since nothing here recurses."""
    data, handlers, memo = machine.data, HANDLERS, machine.memo
    for _ in range(MAX_OPCODES):
        code = data[position]
        # a quarter of all opcodes of a state, so not worth a call
        if code == LONG_BINPUT:
            memo[U32(data, position + 1)[0]] = machine.stack[-1]
            position += 5
            continue
        handler = handlers[code]
        # refused and not passed over: an opcode also says how many bytes belong to it
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
