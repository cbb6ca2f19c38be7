"""The opcodes that remember a value and recall it; a part of `pickle_opcodes.py`."""

from __future__ import annotations

import struct

from gate.checkpoint.pickle.calls import fault
from gate.checkpoint.pickle.machine import Machine

U32 = struct.Struct("<I").unpack_from


def put(machine: Machine, position: int) -> int:
    """BINPUT: remember the top of the stack under a number of one byte."""
    machine.memo[machine.data[position]] = machine.stack[-1]
    return position + 1


def long_put(machine: Machine, position: int) -> int:
    """LONG_BINPUT: the same under a number of four bytes."""
    # a dictionary, so that a number of 32 bits costs one entry: with an array that grows to the
    # highest number it is memory exhaustion (CVE-2018-20406 in Python's own reader)
    machine.memo[U32(machine.data, position)[0]] = machine.stack[-1]
    return position + 4


def memoize(machine: Machine, position: int) -> int:
    """MEMOIZE: the same under the next number."""
    machine.memo[len(machine.memo)] = machine.stack[-1]
    return position


def get(machine: Machine, position: int) -> int:
    """BINGET: push what is remembered under a number of one byte."""
    machine.stack.append(_remembered(machine, machine.data[position]))
    return position + 1


def long_get(machine: Machine, position: int) -> int:
    """LONG_BINGET: the same under a number of four bytes."""
    machine.stack.append(_remembered(machine, U32(machine.data, position)[0]))
    return position + 4


def _remembered(machine: Machine, key: int) -> object:
    """What is remembered under a number, or a fault."""
    try:
        return machine.memo[key]
    except KeyError as error:
        raise fault("recalls a value that it did not remember") from error
