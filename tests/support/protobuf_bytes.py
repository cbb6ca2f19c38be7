"""Fields of a protobuf message, written by hand so that each byte can be wrong."""

from __future__ import annotations


def varint(value: int) -> bytes:
    """A number, seven bits a byte; one below zero in 64 bits."""
    value &= (1 << 64) - 1
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def number(field: int, value: int) -> bytes:
    """A field that is a number."""
    return varint(field << 3) + varint(value)


def text(field: int, data: bytes) -> bytes:
    """A field with a text, bytes, or a message of its own."""
    return varint(field << 3 | 2) + varint(len(data)) + data
