"""Event files of TensorBoard and runs of Weights & Biases, written by hand byte for byte."""

from __future__ import annotations

import json
import struct
import zlib

from protobuf_bytes import number, text, varint

from gate.evidence.tensorboard import masked_crc
from gate.evidence.wandb_runs import BLOCK_BYTES

HEAD = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def plain(value: float) -> bytes:
    """Return a summary's value, encoded as a plain float."""
    return varint(2 << 3 | 5) + struct.pack("<f", value)


def event(step: int, tag: bytes, value: bytes) -> bytes:
    """Return an event as writers make it: a time, a step and a summary with one value."""
    time = varint(1 << 3 | 1) + struct.pack("<d", 1.75e9)
    return time + number(2, step) + text(5, text(1, text(1, tag) + value))


def record(data: bytes) -> bytes:
    """Return a record of an event file: length, data and both checksums."""
    length = struct.pack("<Q", len(data))
    return b"".join(
        (length, struct.pack("<I", masked_crc(length)), data, struct.pack("<I", masked_crc(data)))
    )


def history(step: int, **values: object) -> bytes:
    """Return the record of one call of `run.log`, as the client writes it."""
    items = b"".join(
        text(1, text(2, name.encode()) + text(16, json.dumps(value).encode()))
        for name, value in {**values, "_step": step, "_timestamp": 1.75e9}.items()
    )
    return number(1, step) + text(2, items + text(2, number(1, step)))


def piece(kind: int, data: bytes) -> bytes:
    """Return a piece of a W&B log with a correct checksum."""
    checksum = zlib.crc32(data, zlib.crc32(bytes((kind,))))
    return struct.pack("<IHB", checksum, len(data), kind) + data


def log(*records: bytes) -> bytes:
    """Return a W&B log with these records, each split at the ends of blocks."""
    out = bytearray(HEAD)
    for data in records:
        rest, first = data, True
        while first or rest:
            room = BLOCK_BYTES - len(out) % BLOCK_BYTES
            if room < 7:
                out += b"\0" * room
                continue
            part, rest = rest[: room - 7], rest[room - 7 :]
            kinds = (FULL, FIRST) if first else (LAST, MIDDLE)
            out += piece(kinds[bool(rest)], part)
            first = False
    return bytes(out)
