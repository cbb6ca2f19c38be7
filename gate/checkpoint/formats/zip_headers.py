"""The headers that stand before each entry of a zip archive: they must say what the directory says.

Headers that lie near each other are read together, since an archive may have 200,000 of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from gate.checkpoint.read_groups import grouped
from gate.checkpoint.untrusted_files import UntrustedFile
from gate.errors import EvidenceError
from gate.text.untrusted_text import short_text

ENCRYPTED_FLAG = 0x1
# The sizes stand behind the data instead, and in the directory: so torch writes every entry.
SIZES_LATER_FLAG = 0x8
# The sizes stand in a field of 64 bits.
UNKNOWN_32 = 0xFFFFFFFF
STORED, DEFLATED = 0, 8
# Magic, flags, method, stored and unpacked size, and the lengths of name and extra fields.
LOCAL = struct.Struct("<4s2x2H8x2I2H")
LOCAL_MAGIC = b"PK\x03\x04"
WINDOW_BYTES = 16 * 1024 * 1024
# To skip so many bytes costs less than to ask once more.
MAX_GAP_BYTES = 64 * 1024
# Below, reading costs less than mapping.
READ_BYTES = 64 * 1024


class Entry(NamedTuple):
    """What the directory says of an entry."""

    header_start: int
    name: bytes
    method: int
    stored_bytes: int
    size_bytes: int
    crc: int


class ZipRecord(NamedTuple):
    """An entry: where its `stored_bytes` lie, and how many they are once they are unpacked.

    `crc` is the CRC-32 of the unpacked bytes; None in an archive that was saved without checksums.
    """

    name: str
    start: int
    stored_bytes: int
    size_bytes: int
    deflated: bool
    crc: int | None


def shown_name(name: bytes) -> str:
    """A name as text; bytes that are no UTF-8 are replaced."""
    return name.decode("utf-8", "replace")


def located(opened: UntrustedFile, entries: Iterable[Entry]) -> Iterator[ZipRecord]:
    """Where the data of each entry begins, in the order of the archive.

    Raises `EvidenceError` for a header that contradicts its entry.
    """
    for window in grouped(sorted(entries, key=attrgetter("header_start")), _headers_are_near):
        first, last = window[0].header_start, window[-1]
        length = last.header_start + LOCAL.size + len(last.name) - first
        if length < READ_BYTES:
            yield from _located(opened, window, memoryview(opened.read_at(first, length)))
            continue
        # between the headers lies what is not looked at here
        with opened.mapped(first, length) as data:
            yield from _located(opened, window, data)


def _located(opened: UntrustedFile, window: list[Entry], data: memoryview) -> list[ZipRecord]:
    """The same for entries whose headers all lie in `data`; all are checked at once."""
    starts, names, methods, stored, sizes, checksums = zip(*window, strict=True)
    first = starts[0]
    headers = [
        _local(len(name)).unpack_from(data, start - first)
        for start, name in zip(starts, names, strict=True)
    ]
    # a reader that goes by the directory and one that scans from the front see two different
    # archives where these disagree
    magics, flags, there, small, full, lengths, extras, named = zip(*headers, strict=True)
    if (
        set(magics) != {LOCAL_MAGIC}
        or there != methods
        or named != names
        or lengths != tuple(map(len, names))
        or any(flag & ENCRYPTED_FLAG for flag in set(flags))
        or not all(map(_size_fits, flags, small, stored))
        or not all(map(_size_fits, flags, full, sizes))
    ):
        raise _contradiction(opened, window, headers)
    return [
        ZipRecord(
            name.decode("utf-8", "replace"),
            # the extra field of this header, not the directory's: torch fills it up so that data
            # begins at a multiple of 64 bytes
            start + LOCAL.size + length + extra,
            stored_bytes,
            size_bytes,
            method == DEFLATED,
            crc,
        )
        for start, name, length, extra, stored_bytes, size_bytes, method, crc in zip(
            starts, names, lengths, extras, stored, sizes, methods, checksums, strict=True
        )
    ]


def _size_fits(flags: int, here: int, size_bytes: int) -> bool:
    """Whether a header says the directory's size, or leaves it to another place."""
    return here in {size_bytes, UNKNOWN_32} or bool(flags & SIZES_LATER_FLAG)


@lru_cache(maxsize=1024)
def _local(name_bytes: int) -> struct.Struct:
    """A header and the name behind it."""
    return struct.Struct(f"{LOCAL.format}{name_bytes}s")


def _contradiction(
    opened: UntrustedFile, window: list[Entry], headers: list[tuple[Any, ...]]
) -> EvidenceError:
    """The error that names the first entry whose header is wrong."""
    name = next(
        entry.name
        for entry, (magic, flags, method, small, full, length, _, name) in zip(
            window, headers, strict=True
        )
        if (magic, method, length, name) != (LOCAL_MAGIC, entry.method, len(entry.name), entry.name)
        or flags & ENCRYPTED_FLAG
        or not _size_fits(flags, small, entry.stored_bytes)
        or not _size_fits(flags, full, entry.size_bytes)
    )
    text = short_text(shown_name(name))
    return opened.fault(f"zip entry {text}: its two headers contradict each other")


def _headers_are_near(first: Entry, before: Entry, entry: Entry) -> bool:
    start = entry.header_start
    near = start - before.header_start <= MAX_GAP_BYTES
    return near and start - first.header_start <= WINDOW_BYTES
