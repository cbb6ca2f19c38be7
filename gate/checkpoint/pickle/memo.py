"""The opcodes that remember a value and recall it; a part of `pickle_opcodes.py`."""

from __future__ import annotations

import struct

from gate.checkpoint.pickle.calls import fault
from gate.checkpoint.pickle.machine import Machine
from gate.checkpoint.pickle.nodes import GlobalNode
from gate.checkpoint.pickle.tensors import BUILDER

U32 = struct.Struct("<I").unpack_from


def put(machine: Machine, position: int) -> int:
    """BINPUT: remember the top of the stack under a number of one byte."""
    machine.memo[machine.data[position]] = machine.stack[-1]
    return position + 1


def long_put(machine: Machine, position: int) -> int:
    """LONG_BINPUT: the same under a number of four bytes."""
    machine.memo[U32(machine.data, position)[0]] = machine.stack[-1]
    return position + 4


def memoize(machine: Machine, position: int) -> int:
    """MEMOIZE: the same under the next number."""
    machine.tensors.remember_all()
    machine.memo[len(machine.memo)] = machine.stack[-1]
    return position


def get(machine: Machine, position: int) -> int:
    """BINGET: push what is remembered under a number of one byte."""
    return _recall(machine, machine.data[position], position + 1)


def long_get(machine: Machine, position: int) -> int:
    """LONG_BINGET: the same under a number of four bytes."""
    return _recall(machine, U32(machine.data, position)[0], position + 4)


def _recall(machine: Machine, key: int, position: int) -> int:
    """Push a remembered value; a tensor's builder takes the whole tensor behind it where it can."""
    memo = machine.memo
    if key not in memo:
        machine.tensors.remember_all()
        if key not in memo:
            raise fault("recalls a value that it did not remember")
    value = memo[key]
    if isinstance(value, GlobalNode) and value.key == BUILDER:
        taken = machine.tensors.take(value, position)
        if taken is not None:
            value, position = taken
            items, position = machine.tensors.take_items(key, position)
            machine.stack += (value, *items)
            return position
    machine.stack.append(value)
    return position
