"""Digests of bytes and of file trees, and the difference of two texts.

Every field is prefixed by its length (8 bytes, little-endian), so no two different inputs give the
same byte string. Saved states have their own canonical form: `gate.checkpoint`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from difflib import unified_diff
from typing import Final

Buffer = bytes | bytearray | memoryview


def field(data: bytes) -> bytes:
    """Return the length, then the bytes."""
    return len(data).to_bytes(8, "little") + data


def sha256_hex(data: Buffer) -> str:
    """Return the SHA-256 as 64 lower-case hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def tree_digest(entries: Iterable[tuple[str, str, str]]) -> str:
    """Return the digest of a file tree given as (path, mode, SHA-256 of the content)."""
    hasher = hashlib.sha256(field(b"repro-gate-tree/1"))
    # sorted, because the order in which a file system lists folders is arbitrary
    for entry in sorted(entries):
        for part in entry:
            # surrogates of names that are not UTF-8 (PEP 383) are turned back into the original
            # bytes
            hasher.update(field(part.encode("utf-8", "surrogateescape")))
    return hasher.hexdigest()


# the time of a comparison grows with the square of what differs
MAX_LINES: Final = 5000
NO_END: Final = "\\ No newline at end of file\n"


def file_diff(path: str, before: bytes | None, after: bytes | None) -> str:
    """Return how a file changed; None means no file. Binary or long content is named, not shown."""
    old, new = (f"{side}/{path}" for side in "ab")
    names = (old if before is not None else "/dev/null", new if after is not None else "/dev/null")
    sides = [_lines(content) for content in (before, after)]
    if sides[0] is None or sides[1] is None:
        return f"Files {names[0]} and {names[1]} differ\n"
    lines = unified_diff(sides[0], sides[1], *names)
    return "".join(line if line.endswith("\n") else f"{line}\n{NO_END}" for line in lines)


def _lines(content: bytes | None) -> list[str] | None:
    """Return the lines of a text with their ends, or None if it is binary or too long."""
    if b"\0" in (content or b""):
        return None
    try:
        # split at line feeds alone, as git and patch(1) do
        parts = (content or b"").decode("utf-8").split("\n")
    except UnicodeDecodeError:
        return None
    lines = [f"{line}\n" for line in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
    return lines if len(lines) <= MAX_LINES else None
