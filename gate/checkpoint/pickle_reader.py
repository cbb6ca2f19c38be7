"""Interprets a pickle as data: no name is imported, nothing is called, every limit is counted.

The opcodes are those that Python writes under protocols 2 to 5, decoded by `pickletools`. Source:
the opcode table in Python's `pickletools`.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Final

from gate.evidence.hostile_file import short_text
from gate.evidence.pickle_calls import call, fault, storage
from gate.evidence.pickle_nodes import GlobalNode, MapNode, OpaqueNode, SetNode

MAX_OPCODES = 5_000_000
MAX_STACK = 1_000_000
PROTOCOLS = range(2, 6)


def read_pickle(data: bytes) -> object:
    """The value of a pickle: plain Python values and the nodes of `pickle_nodes`.

    Raises `StateError` for a pickle that is cut short, too long, malformed, or uses an opcode that
    no state needs. The caller limits the size of `data`.
    """
    try:
        return _run(data)
    except ValueError as error:
        # What pickletools answers to a broken opcode or a missing end.
        raise fault(f"its pickle is cut short or broken: {short_text(str(error))}") from error


def _run(data: bytes) -> object:
    machine, end = _Machine(), 0
    opcodes = pickletools.genops(data)
    for count, (opcode, argument, position) in enumerate(opcodes, start=1):
        if count == 1 and (opcode.name != "PROTO" or argument not in PROTOCOLS):
            raise fault("is not a pickle of protocol 2 to 5")
        if count > MAX_OPCODES or max(len(machine.stack), len(machine.memo)) > MAX_STACK:
            raise fault(f"has more than {MAX_OPCODES:,} opcodes or {MAX_STACK:,} open values")
        end = position or 0
        handler = HANDLERS.get(opcode.name)
        if handler is None:
            raise fault(f"uses the opcode {opcode.name}, which no state needs")
        handler(machine, argument)
    return machine.result(rest_bytes=len(data) - end - 1)


class _Machine:
    """The stack, its marks and the memo."""

    def __init__(self) -> None:
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[object, object] = {}

    def result(self, rest_bytes: int) -> object:
        if rest_bytes or self.marks or len(self.stack) != 1:
            raise fault("ends with open values or bytes behind its end")
        return self.stack[0]

    def push(self, value: object) -> None:
        self.stack.append(value)

    def pop(self) -> object:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise fault("takes a value from an empty stack")
        return self.stack.pop()

    def top(self) -> object:
        value = self.pop()
        self.push(value)
        return value

    def pop_mark(self) -> list[object]:
        if not self.marks:
            raise fault("closes a group that it did not open")
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def remember(self, key: object) -> None:
        self.memo[key] = self.top()

    def recall(self, key: object) -> None:
        if key not in self.memo:
            raise fault("recalls a value that it did not remember")
        self.push(self.memo[key])

    def push_tuple(self, length: int) -> None:
        items = [self.pop() for _ in range(length)]
        self.push(tuple(reversed(items)))


Handler = Callable[[_Machine, object], None]


def _push_argument(machine: _Machine, argument: object) -> None:
    machine.push(bytes(argument) if isinstance(argument, bytearray) else argument)


def _global(machine: _Machine, argument: object) -> None:
    module, _, name = str(argument).partition(" ")
    machine.push(GlobalNode(module, name))


def _stack_global(machine: _Machine, _argument: object) -> None:
    name, module = machine.pop(), machine.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        raise fault("refers to a name that is no text")
    machine.push(GlobalNode(module, name))


def _extend(machine: _Machine, items: list[object]) -> None:
    target = machine.top()
    if isinstance(target, list):
        target.extend(items)
    elif isinstance(target, SetNode | OpaqueNode):
        target.items.extend(items)
    else:
        raise fault("adds items to something that holds none")


def _append(machine: _Machine, _argument: object) -> None:
    item = machine.pop()
    _extend(machine, [item])


def _extend_pairs(machine: _Machine, items: list[object]) -> None:
    target = machine.top()
    if not isinstance(target, MapNode | OpaqueNode) or len(items) % 2:
        raise fault("sets keys in something that has none")
    target.pairs.extend(zip(items[::2], items[1::2], strict=True))


def _set_item(machine: _Machine, _argument: object) -> None:
    value, key = machine.pop(), machine.pop()
    _extend_pairs(machine, [key, value])


def _reduce(machine: _Machine, _argument: object) -> None:
    arguments, function = machine.pop(), machine.pop()
    machine.push(call(function, arguments))


def _new_object_with_keywords(machine: _Machine, _argument: object) -> None:
    keywords, arguments, function = machine.pop(), machine.pop(), machine.pop()
    made = call(function, arguments)
    if isinstance(made, OpaqueNode):
        made.states.append(keywords)
    machine.push(made)


def _build(machine: _Machine, _argument: object) -> None:
    """Attributes of a map are kept too, but for the versions that `state_dict()` notes there."""
    state, target = machine.pop(), machine.top()
    if isinstance(target, OpaqueNode):
        target.states.append(state)
    elif isinstance(target, MapNode):
        pairs = state.pairs if isinstance(state, MapNode) else [("state", state)]
        kept = [pair for pair in pairs if not _is_text(pair[0], "_metadata")]
        target.attributes.extend([MapNode(kept)] if kept else [])
    else:
        raise fault("sets attributes of something that has none")


def _is_text(value: object, text: str) -> bool:
    return isinstance(value, str) and value == text


def _discard(machine: _Machine, _argument: object) -> None:
    machine.pop()


def _ignore(_machine: _Machine, _argument: object) -> None:
    """The protocol number, frames and the end say nothing about the value."""


HANDLERS: Final[dict[str, Handler]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), _ignore),
    **dict.fromkeys(
        (
            "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE",
            "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
            "BYTEARRAY8",
        ),
        _push_argument,
    ),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "EMPTY_DICT": lambda machine, _: machine.push(MapNode()),
    "EMPTY_SET": lambda machine, _: machine.push(SetNode([])),
    "MARK": lambda machine, _: machine.marks.append(len(machine.stack)),
    "POP": _discard,
    "POP_MARK": lambda machine, _: machine.pop_mark().clear(),
    "DUP": lambda machine, _: machine.push(machine.top()),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.pop_mark())),
    "TUPLE1": lambda machine, _: machine.push_tuple(1),
    "TUPLE2": lambda machine, _: machine.push_tuple(2),
    "TUPLE3": lambda machine, _: machine.push_tuple(3),
    "FROZENSET": lambda machine, _: machine.push(SetNode(machine.pop_mark())),
    "APPEND": _append,
    "APPENDS": lambda machine, _: _extend(machine, machine.pop_mark()),
    "ADDITEMS": lambda machine, _: _extend(machine, machine.pop_mark()),
    "SETITEM": _set_item,
    "SETITEMS": lambda machine, _: _extend_pairs(machine, machine.pop_mark()),
    "BINPUT": lambda machine, key: machine.remember(key),
    "LONG_BINPUT": lambda machine, key: machine.remember(key),
    "MEMOIZE": lambda machine, _: machine.remember(len(machine.memo)),
    "BINGET": lambda machine, key: machine.recall(key),
    "LONG_BINGET": lambda machine, key: machine.recall(key),
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "BINPERSID": lambda machine, _: machine.push(storage(machine.pop())),
    "REDUCE": _reduce,
    "NEWOBJ": _reduce,
    "NEWOBJ_EX": _new_object_with_keywords,
    "BUILD": _build,
}  # fmt: skip
