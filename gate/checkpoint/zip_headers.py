"""The headers that stand before each entry of a zip archive: they must say what the directory says.

Headers that lie near each other are read together, since an archive may have 200,000 of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple

from gate.checkpoint.hostile_file import HostileFile, short_text

ENCRYPTED_FLAG = 0x1
STORED, DEFLATED = 0, 8
# Magic, flags, method, and the lengths of name and extra fields.
LOCAL = struct.Struct("<4s2x2H16x2H")
LOCAL_MAGIC = b"PK\x03\x04"
WINDOW_BYTES = 1024 * 1024
# To read over so many bytes costs less than to ask once more.
MAX_GAP_BYTES = 16 * 1024


class Entry(NamedTuple):
    """What the directory says of an entry."""

    header_start: int
    name: bytes
    method: int
    stored_bytes: int
    size_bytes: int


class ZipRecord(NamedTuple):
    """An entry: where its `stored_bytes` lie, and how many they are once they are unpacked."""

    name: str
    start: int
    stored_bytes: int
    size_bytes: int
    deflated: bool


def shown_name(name: bytes) -> str:
    """A name as text; bytes that are no UTF-8 are replaced."""
    return name.decode("utf-8", "replace")


def located(opened: HostileFile, entries: Iterable[Entry]) -> Iterator[ZipRecord]:
    """Where the data of each entry begins, in the order of the archive.

    Raises `EvidenceError` for a header that contradicts its entry.
    """
    buffer = memoryview(bytearray(WINDOW_BYTES + LOCAL.size + 0xFFFF))
    for window in _windows(sorted(entries, key=attrgetter("header_start"))):
        first, last = window[0].header_start, window[-1]
        end = last.header_start + LOCAL.size + len(last.name)
        data = buffer[: end - first]
        opened.read_into(first, data)
        for header_start, name, wanted, stored_bytes, size_bytes in window:
            position = header_start - first
            magic, flags, method, name_bytes, extra_bytes = LOCAL.unpack_from(data, position)
            position += LOCAL.size
            text = name.decode("utf-8", "replace")
            if (
                magic != LOCAL_MAGIC
                or method != wanted
                or flags & ENCRYPTED_FLAG
                or name_bytes != len(name)
                or data[position : position + name_bytes] != name
            ):
                raise opened.fault(
                    f"zip entry {short_text(text)}: its two headers contradict each other"
                )
            start = first + position + name_bytes + extra_bytes
            yield ZipRecord(text, start, stored_bytes, size_bytes, method == DEFLATED)


def _windows(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Neighbours whose headers fit into one read."""
    window: list[Entry] = []
    first = before = 0
    for entry in entries:
        start = entry.header_start
        if window and (start - before > MAX_GAP_BYTES or start - first > WINDOW_BYTES):
            yield window
            window = []
        if not window:
            first = start
        before = start
        window.append(entry)
    if window:
        yield window
