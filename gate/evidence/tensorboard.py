"""Scalars inside one TensorBoard event: as much of protocol buffers as that takes.

Fields by number, from TensorFlow's `event.proto`, `summary.proto` and `tensor.proto`: an event has
its step (2) and a summary (5), which has values (1); a value has a tag (1) and either a plain
float (2) or a tensor (8); a tensor has a type (1), a shape (2), and its numbers as raw bytes (4),
as floats (5) or as doubles (6).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gate.errors import EvidenceError
from gate.evidence.run_evidence import FloatType

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
# Ten groups of seven bits are the fewest that hold 64.
MAX_VARINT_BYTES = 10
# DT_FLOAT and DT_DOUBLE: the type's name, its `struct` code, and the field of its numbers.
TENSOR_TYPES: Final[dict[int, tuple[FloatType, str, int]]] = {
    1: ("float32", "<f", 5),
    2: ("float64", "<d", 6),
}
SHAPE_FIELD = 2
DIMENSION_FIELD = 2
RAW_FIELD = 4
CONTINUES = 0x80
Field = tuple[int, int, int, bytes]


class MalformedEventError(EvidenceError):
    """Bytes that are no event; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scalar:
    """One number of one tag at one step."""

    tag: str
    step: int
    value: float
    dtype: FloatType


def scalars(event: bytes) -> tuple[Scalar, ...]:
    """The scalars of an event; images, histograms, graphs and text are passed over.

    Raises `MalformedEventError`.
    """
    step, summaries = 0, []
    for number, wire, varint, data in _fields(event):
        if (number, wire) == (2, VARINT):
            # int64 is written as 64 bits of two's complement (Protocol Buffers, Encoding)
            step = varint - (1 << 64) if varint >> 63 else varint
        elif (number, wire) == (5, BYTES):
            summaries.append(data)
    values = [
        data
        for summary in summaries
        for number, wire, _, data in _fields(summary)
        if (number, wire) == (1, BYTES)
    ]
    event_scalars = [_scalar(value, step) for value in values]
    return tuple(scalar for scalar in event_scalars if scalar is not None)


def _scalar(value: bytes, step: int) -> Scalar | None:
    tag = ""
    number_found: tuple[float, FloatType] | None = None
    for number, wire, _, data in _fields(value):
        if (number, wire) == (1, BYTES):
            tag = _text(data)
        elif (number, wire) == (2, FIXED32):
            number_found = (struct.unpack("<f", data)[0], "float32")
        elif (number, wire) == (8, BYTES):
            number_found = _tensor_scalar(data)
    if number_found is None:
        return None
    return Scalar(tag=tag, step=step, value=number_found[0], dtype=number_found[1])


def _tensor_scalar(tensor: bytes) -> tuple[float, FloatType] | None:
    """The only element of a float tensor without dimensions, else None."""
    fields = list(_fields(tensor))
    kinds = [varint for number, wire, varint, _ in fields if (number, wire) == (1, VARINT)]
    # of a field that stands there twice the last one counts (Protocol Buffers, Encoding)
    known = TENSOR_TYPES.get(kinds[-1]) if kinds else None
    has_dimensions = any(
        number == SHAPE_FIELD and any(inner == DIMENSION_FIELD for inner, *_ in _fields(data))
        for number, wire, _, data in fields
        if wire == BYTES
    )
    if known is None or has_dimensions:
        return None
    dtype, code, own_field = known
    numbers = b"".join(data for number, _, _, data in fields if number in {RAW_FIELD, own_field})
    if len(numbers) != struct.calcsize(code):
        return None
    return struct.unpack(code, numbers)[0], dtype


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedEventError("a tag is not UTF-8") from error


def _fields(message: bytes) -> Iterator[Field]:
    """Number, wire type, and the value: an integer for varints, bytes for all else."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, position = _varint(message, position)
            yield number, wire, value, b""
            continue
        if wire == BYTES:
            length, position = _varint(message, position)
        elif wire in {FIXED32, FIXED64}:
            length = 4 if wire == FIXED32 else 8
        else:
            raise MalformedEventError(f"wire type {wire} is not in use")
        # the length is the file's claim; a slice behind the end would only be shorter
        if length > len(message) - position:
            raise MalformedEventError("a field ends beyond its message")
        yield number, wire, 0, message[position : position + length]
        position += length


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """The integer that begins there, modulo 2**64, and the position behind it."""
    value = 0
    for index, byte in enumerate(message[position : position + MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * index
        if not byte & CONTINUES:
            return value & (1 << 64) - 1, position + index + 1
    raise MalformedEventError("an integer is not terminated")
