"""Fields of protobuf messages, encoded by hand so that a test can falsify each byte."""

from __future__ import annotations


def varint(value: int) -> bytes:
    """Return a number as a varint, seven bits per byte; a negative one as 64 bits."""
    value &= (1 << 64) - 1
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def number(field: int, value: int) -> bytes:
    """Return a field with a number."""
    return varint(field << 3) + varint(value)


def text(field: int, data: bytes) -> bytes:
    """Return a field with a text, bytes, or a nested message."""
    return varint(field << 3 | 2) + varint(len(data)) + data
