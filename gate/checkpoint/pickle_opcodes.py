"""What each opcode of a pickle does to the machine; whatever is missing here is refused.

A handler is given the position behind its opcode and answers the position of the next one. Source:
the opcode table in Python's `pickletools`; only what protocols 2 to 5 write.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from typing import Final

from gate.checkpoint.pickle_calls import call, fault, storage
from gate.checkpoint.pickle_machine import Machine
from gate.checkpoint.pickle_nodes import GlobalNode, MapNode, OpaqueNode, SetNode, global_node
from gate.checkpoint.pickle_tensors import BUILDER

NO_MORE = -1
U16 = struct.Struct("<H").unpack_from
U32 = struct.Struct("<I").unpack_from
I32 = struct.Struct("<i").unpack_from
U64 = struct.Struct("<Q").unpack_from
F64 = struct.Struct(">d").unpack_from
NAMES: Final = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}

Handler = Callable[[Machine, int], int]


def _constant(make: Callable[[], object]) -> Handler:
    def push(machine: Machine, position: int) -> int:
        machine.stack.append(make())
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


def _skip(width: int) -> Handler:
    return lambda _machine, position: position + width


def _stop(machine: Machine, position: int) -> int:
    machine.end = position
    return NO_MORE


def _text(machine: Machine, position: int) -> int:
    """The commonest opcode that has a length, without the detours of `_sized`."""
    data = machine.data
    start = position + 4
    end = start + U32(data, position)[0]
    if end > len(data):
        raise IndexError
    machine.stack.append(data[start:end].decode("utf-8", "surrogatepass"))
    return end


def _mark(machine: Machine, position: int) -> int:
    machine.marks.append(machine.stack)
    machine.stack = []
    return position


def _pop(machine: Machine, position: int) -> int:
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


def _put(machine: Machine, position: int) -> int:
    machine.memo[machine.data[position]] = machine.stack[-1]
    return position + 1


def _long_put(machine: Machine, position: int) -> int:
    machine.memo[U32(machine.data, position)[0]] = machine.stack[-1]
    return position + 4


def _memoize(machine: Machine, position: int) -> int:
    machine.memo[len(machine.memo)] = machine.stack[-1]
    return position


def _get(machine: Machine, position: int) -> int:
    return _recall(machine, machine.data[position], position + 1)


def _long_get(machine: Machine, position: int) -> int:
    return _recall(machine, U32(machine.data, position)[0], position + 4)


def _recall(machine: Machine, key: int, position: int) -> int:
    """Push a remembered value; a tensor's builder takes the whole tensor behind it where it can."""
    try:
        value = machine.memo[key]
    except KeyError:
        raise fault("recalls a value that it did not remember") from None
    if isinstance(value, GlobalNode) and value.key == BUILDER:
        taken = machine.tensors.take(value, position)
        if taken is not None:
            value, position = taken
    machine.stack.append(value)
    return position


def _tuple(machine: Machine, position: int) -> int:
    items = tuple(machine.pop_mark())
    machine.stack.append(items)
    return position


def _short_tuple(length: int) -> Handler:
    def push(machine: Machine, position: int) -> int:
        stack = machine.stack
        if len(stack) < length:
            raise IndexError
        stack[-length:] = [tuple(stack[-length:])]
        return position

    return push


def _frozen_set(machine: Machine, position: int) -> int:
    items = machine.pop_mark()
    machine.stack.append(SetNode(items))
    return position


def _global(machine: Machine, position: int) -> int:
    """Two lines of text: the module and the name in it."""
    first = machine.data.find(b"\n", position)
    second = machine.data.find(b"\n", first + 1)
    if first < 0 or second < 0:
        raise IndexError
    module, name = machine.data[position:first], machine.data[first + 1 : second]
    machine.stack.append(global_node(module.decode("utf-8"), name.decode("utf-8")))
    return second + 1


def _stack_global(machine: Machine, position: int) -> int:
    name, module = machine.stack.pop(), machine.stack.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        raise fault("refers to a name that is no text")
    machine.stack.append(global_node(module, name))
    return position


def _extend(target: object, items: list[object]) -> None:
    if isinstance(target, list):
        target.extend(items)
    elif isinstance(target, SetNode | OpaqueNode):
        target.items.extend(items)
    else:
        raise fault("adds items to something that holds none")


def _append(machine: Machine, position: int) -> int:
    item = machine.stack.pop()
    _extend(machine.stack[-1], [item])
    return position


def _append_many(machine: Machine, position: int) -> int:
    items = machine.pop_mark()
    _extend(machine.stack[-1], items)
    return position


def _extend_pairs(target: object, items: list[object]) -> None:
    if not isinstance(target, MapNode | OpaqueNode) or len(items) % 2:
        raise fault("sets keys in something that has none")
    target.pairs.extend(zip(items[::2], items[1::2], strict=True))


def _set_item(machine: Machine, position: int) -> int:
    value, key = machine.stack.pop(), machine.stack.pop()
    _extend_pairs(machine.stack[-1], [key, value])
    return position


def _set_items(machine: Machine, position: int) -> int:
    items = machine.pop_mark()
    _extend_pairs(machine.stack[-1], items)
    return position


def _persistent_id(machine: Machine, position: int) -> int:
    machine.stack[-1] = storage(machine.stack[-1])
    return position


def _reduce(machine: Machine, position: int) -> int:
    arguments = machine.stack.pop()
    machine.stack[-1] = call(machine.stack[-1], arguments)
    return position


def _new_object_with_keywords(machine: Machine, position: int) -> int:
    keywords, arguments = machine.stack.pop(), machine.stack.pop()
    made = call(machine.stack[-1], arguments)
    if isinstance(made, OpaqueNode):
        made.states.append(keywords)
    machine.stack[-1] = made
    return position


def _build(machine: Machine, position: int) -> int:
    """Attributes of a map are kept too, but for the versions that `state_dict()` notes there."""
    state = machine.stack.pop()
    target = machine.stack[-1]
    if isinstance(target, OpaqueNode):
        target.states.append(state)
    elif isinstance(target, MapNode):
        pairs = state.pairs if isinstance(state, MapNode) else [("state", state)]
        kept = [pair for pair in pairs if not _is_text(pair[0], "_metadata")]
        target.attributes.extend([MapNode(kept)] if kept else [])
    else:
        raise fault("sets attributes of something that has none")
    return position


def _is_text(value: object, text: str) -> bool:
    return isinstance(value, str) and value == text


_BY_NAME: Final[dict[str, Handler]] = {
    "FRAME": _skip(8),
    "STOP": _stop,
    "NONE": _constant(lambda: None),
    "NEWTRUE": _constant(lambda: True),
    "NEWFALSE": _constant(lambda: False),
    "EMPTY_TUPLE": _constant(lambda: ()),
    "EMPTY_LIST": _constant(list),
    "EMPTY_DICT": _constant(MapNode),
    "EMPTY_SET": _constant(lambda: SetNode([])),
    "BININT": _number(I32, 4),
    "BININT1": _number(_byte, 1),
    "BININT2": _number(U16, 2),
    "BINFLOAT": _number(F64, 8),
    "LONG1": _sized(Machine.push_integer, _byte, 1),
    "LONG4": _sized(Machine.push_integer, U32, 4),
    "SHORT_BINUNICODE": _sized(Machine.push_text, _byte, 1),
    "BINUNICODE": _text,
    "BINUNICODE8": _sized(Machine.push_text, U64, 8),
    "SHORT_BINBYTES": _sized(Machine.push_bytes, _byte, 1),
    "BINBYTES": _sized(Machine.push_bytes, U32, 4),
    "BINBYTES8": _sized(Machine.push_bytes, U64, 8),
    "BYTEARRAY8": _sized(Machine.push_bytes, U64, 8),
    "MARK": _mark,
    "POP": _pop,
    "POP_MARK": _pop_mark,
    "DUP": _duplicate,
    "TUPLE": _tuple,
    "TUPLE1": _short_tuple(1),
    "TUPLE2": _short_tuple(2),
    "TUPLE3": _short_tuple(3),
    "FROZENSET": _frozen_set,
    "APPEND": _append,
    "APPENDS": _append_many,
    "ADDITEMS": _append_many,
    "SETITEM": _set_item,
    "SETITEMS": _set_items,
    "BINPUT": _put,
    "LONG_BINPUT": _long_put,
    "MEMOIZE": _memoize,
    "BINGET": _get,
    "LONG_BINGET": _long_get,
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "BINPERSID": _persistent_id,
    "REDUCE": _reduce,
    "NEWOBJ": _reduce,
    "NEWOBJ_EX": _new_object_with_keywords,
    "BUILD": _build,
}
HANDLERS: Final[tuple[Handler | None, ...]] = tuple(
    _BY_NAME.get(NAMES.get(code, "")) for code in range(256)
)
