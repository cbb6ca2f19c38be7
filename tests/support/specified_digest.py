"""A second implementation of docs/digest.md, written from the page without using the program.

Maps are dictionaries, sequences lists or tuples, sets frozen sets; objects are left to others.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import NamedTuple

ALGORITHM, CHUNK = b"repro-gate-state/2", 4_194_304


class Plain(NamedTuple):
    """A tensor: its elements in row-major order, little-endian."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def field(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def step(key: object) -> str:
    if isinstance(key, bytes):
        return "{x" + key.hex() + "}"
    if not isinstance(key, str):
        return "{" + repr(key) + "}"
    for sign, escaped in (("~", "~0"), ("/", "~1"), ("[", "~2"), ("{", "~3"), ("<", "~4")):
        key = key.replace(sign, escaped)
    return "/" + key


def leaves(state: object, path: str = "") -> Iterator[tuple[str, object]]:
    below: list[tuple[str, object]] = []
    if isinstance(state, dict):
        below = [(step(key), value) for key, value in state.items()]
    elif isinstance(state, list | tuple) and not isinstance(state, Plain):
        below = [(f"[{index}]", value) for index, value in enumerate(state)]
    elif isinstance(state, set | frozenset):
        below = [(f"<{index}>", value) for index, value in enumerate(sorted(state, key=sort_key))]
    for part, value in below:
        yield from leaves(value, path + part)
    if not below:
        yield path, state


def sort_key(member: object) -> bytes:
    rows = [(path.encode(), *kind_and_bytes(value)) for path, value in leaves(member)]
    return b"".join(sorted(field(path) + field(kind) + field(data) for path, kind, data in rows))


def kind_and_bytes(value: object) -> tuple[bytes, bytes]:  # noqa: PLR0911 - the rows of a table
    match value:
        case None:
            return b"none", b""
        case bool():
            return b"bool", b"\1" if value else b"\0"
        case int():
            return b"int", value.to_bytes(abs(value).bit_length() // 8 + 1, "little", signed=True)
        case float():
            return b"float", struct.pack("<d", value)
        case str():
            return b"text", value.encode("utf-8", "surrogatepass")
        case bytes() | bytearray():
            return b"bytes", bytes(value)
        case dict():
            return b"empty map", b""
        case set() | frozenset():
            return b"empty set", b""
    return b"empty sequence", b""


def leaf_digest(value: object) -> bytes:
    if not isinstance(value, Plain):
        kind, data = kind_and_bytes(value)
        return sha256(field(b"value") + field(kind) + data)
    dimensions = b"".join(struct.pack("<Q", size) for size in value.shape)
    about = field(value.dtype.encode()) + field(dimensions)
    if len(value.data) <= CHUNK:
        return sha256(field(b"tensor") + about + value.data)
    chunks = (value.data[start : start + CHUNK] for start in range(0, len(value.data), CHUNK))
    return sha256(field(b"chunks") + about + b"".join(field(sha256(chunk)) for chunk in chunks))


def part_root(part: str, rows: dict[str, bytes]) -> bytes:
    head = field(ALGORITHM) + field(b"sha256") + field(part.encode())
    ordered = sorted((path.encode(), leaf) for path, leaf in rows.items())
    return sha256(head + b"".join(field(path) + field(leaf) for path, leaf in ordered))


def whole_root(parts: dict[str, bytes]) -> bytes:
    head = field(ALGORITHM) + field(b"sha256") + field(b"state")
    return sha256(
        head + b"".join(field(name.encode()) + field(parts[name]) for name in sorted(parts))
    )
