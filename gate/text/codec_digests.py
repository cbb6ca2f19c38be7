"""Digests over bytes and over a tree of files.

Every field is length-prefixed (8 bytes, little-endian), so that no two different inputs are the
same byte string. Saved states have a canonical form of their own: `gate.checkpoint`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

Buffer = bytes | bytearray | memoryview


def field(data: bytes) -> bytes:
    """Length, then bytes."""
    return len(data).to_bytes(8, "little") + data


def sha256_hex(data: Buffer) -> str:
    """SHA-256 as 64 lowercase hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def tree_digest(entries: Iterable[tuple[str, str, str]]) -> str:
    """The digest of a tree of files given as (path, mode, SHA-256 of the content)."""
    hasher = hashlib.sha256(field(b"repro-gate-tree/1"))
    # sorted here: folders are walked in the order of the file system, and that is no fact
    for entry in sorted(entries):
        for part in entry:
            # names that are no UTF-8 come as surrogates (PEP 383) and go back to their own bytes
            hasher.update(field(part.encode("utf-8", "surrogateescape")))
    return hasher.hexdigest()
