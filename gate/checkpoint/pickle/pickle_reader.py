"""Interprets a pickle as data: no name is imported, nothing is called, every limit is counted."""

from __future__ import annotations

import struct
from typing import Final

from gate.checkpoint.pickle.calls import fault
from gate.checkpoint.pickle.machine import Machine
from gate.checkpoint.pickle.reader import HANDLERS, NO_MORE, U32

# Of one pickle: what it is made into takes several times as much memory.
MAX_PICKLE_BYTES = 64 * 1024 * 1024
# A million values take a few opcodes each; this bounds time where the size of the file does not.
MAX_OPCODES = 5_000_000
# The opcode PROTO and the protocols whose opcodes are known.
LONG_BINPUT: Final = ord("r")
HEADS: Final = frozenset(bytes((0x80, number)) for number in range(2, 6))


def read_pickle(data: bytes) -> object:
    """The value of a pickle that fills `data`: plain values and the nodes of `pickle.nodes`.

    Raises `StateError` for a pickle that is cut short, too long, malformed, or uses an opcode that
    no state needs. The caller limits the size of `data`.
    """
    value, end = read_pickle_at(data, 0)
    if end != len(data):
        raise fault("ends with unused values or trailing bytes")
    return value


def read_pickle_at(data: bytes, start: int) -> tuple[object, int]:
    """The same for a pickle that begins at `start`, and where it ended."""
    machine = interpret(data, start)
    return machine.stack[0], machine.end


def interpret(data: bytes, start: int) -> Machine:
    """The machine after a pickle that begins at `start`; its value is the only one on the stack.

    Raises as `read_pickle` does.
    """
    if data[start : start + 2] not in HEADS:
        raise fault("is not a pickle of protocol 2 to 5")
    machine = Machine(data)
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
