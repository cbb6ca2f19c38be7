"""Where the files of a package lie inside it, without reading them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from gate.package.ustar import BLOCK_BYTES, MAX_MEMBERS, padding, parse_header

# the evidence of the run whose state that is
RUN_MEMBER: Final = "evidence/strict-1/evidence.json"
# Where the header of POSIX ustar has its magic and version.
MAGIC_START: Final = 257
MAGIC: Final = b"ustar\x0000"


def looks_like_package(head: bytes) -> bool:
    """Whether a file that begins with these bytes (one block of them) may be a package."""
    return head[MAGIC_START : MAGIC_START + len(MAGIC)] == MAGIC


def member_index(
    read_at: Callable[[int, int], bytes], size_bytes: int
) -> Iterator[tuple[str, int, int]]:
    """Name, start and size of each file, in the order in which they lie there.

    Nothing is verified but the headers: `AttestationError` for one that we would not write, and
    whatever `read_at` raises for a place behind the end.
    """
    position = 0
    for _ in range(MAX_MEMBERS):
        if position + BLOCK_BYTES > size_bytes:
            return
        block = read_at(position, BLOCK_BYTES)
        if not any(block):
            return
        name, member_bytes = parse_header(block)
        start = position + BLOCK_BYTES
        yield name, start, member_bytes
        position = start + member_bytes + len(padding(member_bytes))
