"""Find the entries of a zip archive, and check the header before each of them.

Headers that are close together are read together, because an archive may have 200,000 of them.

Only what torch and NumPy write is accepted: stored or deflated entries, no encryption, no comment,
distinct names, and no two entries over the same bytes. Anything else is refused, because two
readers could see two different archives in it. Source: PKWARE APPNOTE 6.3.10, sections 4.3 and
4.5.3.

The checksum of every stored entry is verified here, before anything is read from it, so no reader
can forget to. `Inflated` verifies the checksum of a deflated entry whenever its bytes are unpacked.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple
from zlib import crc32

from gate.checkpoint.byte_sources import DAMAGED_HINT, WRONG_CRC, Inflated
from gate.checkpoint.leaves import PIECE_BYTES, FileSpan
from gate.checkpoint.tensor_hashing import available_threads, run_all
from gate.checkpoint.untrusted_files import UntrustedFile, file_part, grouped
from gate.errors import EvidenceError
from gate.text.untrusted_text import short_text

ENCRYPTED_FLAG = 0x1
# The sizes are after the data and in the directory, as torch writes every entry.
SIZES_LATER_FLAG = 0x8
# marks a value that is in a 64-bit field instead
UNKNOWN_32 = 0xFFFFFFFF
STORED, DEFLATED = 0, 8
# Magic, flags, method, stored and unpacked size, and the lengths of name and extra fields.
LOCAL = struct.Struct("<4s2x2H8x2I2H")
LOCAL_MAGIC = b"PK\x03\x04"
WINDOW_BYTES = 16 * 1024 * 1024
# reading this many bytes more costs less than another read
MAX_GAP_BYTES = 64 * 1024
# below this size, reading costs less than mapping
READ_BYTES = 64 * 1024


class Entry(NamedTuple):
    """What the directory says about an entry."""

    header_start: int
    name: bytes
    method: int
    stored_bytes: int
    size_bytes: int
    crc: int


class ZipRecord(NamedTuple):
    """An entry of the archive: the place of its data, and its size before and after unpacking.

    `crc` is the CRC-32 of the unpacked bytes; it is None if the archive was saved without
    checksums.
    """

    name: str
    start: int
    stored_bytes: int
    size_bytes: int
    deflated: bool
    crc: int | None


def name_text(name: bytes) -> str:
    """Return a name as text; bytes that are not UTF-8 are replaced."""
    return name.decode("utf-8", "replace")


def located(opened: UntrustedFile, entries: Iterable[Entry]) -> Iterator[ZipRecord]:
    """Yield the place of each entry's data, in the order of the archive.

    Raises `EvidenceError` if an entry's header contradicts the directory.
    """
    for window in grouped(sorted(entries, key=attrgetter("header_start")), _headers_are_near):
        first = window[0].header_start
        # In a malicious archive headers may overlap, so the last one to begin need not be the last
        # one to end.
        length = max(entry.header_start + LOCAL.size + len(entry.name) for entry in window) - first
        if length < READ_BYTES:
            yield from _located(opened, window, memoryview(opened.read_at(first, length)))
            continue
        # the range is mostly data between the headers, which is not looked at here, so map it
        with opened.mapped(first, length) as data:
            yield from _located(opened, window, data)


def _located(opened: UntrustedFile, window: list[Entry], data: memoryview) -> list[ZipRecord]:
    """Return the records of entries whose headers are in `data`; all are checked at once."""
    starts, names, methods, stored, sizes, checksums = zip(*window, strict=True)
    first = starts[0]
    headers = [
        _local(len(name)).unpack_from(data, start - first)
        for start, name in zip(starts, names, strict=True)
    ]
    # Some readers use the directory, others scan from the front. If the two disagree, they see
    # different archives.
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
            # The extra field of this header counts, not the directory's: torch pads it so that the
            # data begins at a multiple of 64 bytes.
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
    """Return whether a header has the directory's size, or says that it is elsewhere."""
    return here in {size_bytes, UNKNOWN_32} or bool(flags & SIZES_LATER_FLAG)


@lru_cache(maxsize=1024)
def _local(name_bytes: int) -> struct.Struct:
    """Return the layout of a header with a name of this length."""
    return struct.Struct(f"{LOCAL.format}{name_bytes}s")


def _contradiction(
    opened: UntrustedFile, window: list[Entry], headers: list[tuple[Any, ...]]
) -> EvidenceError:
    """Return an error that names the first entry whose header is wrong."""
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
    text = short_text(name_text(name))
    return opened.fault(f"zip entry {text}: its two headers contradict each other")


def _headers_are_near(first: Entry, before: Entry, entry: Entry) -> bool:
    start = entry.header_start
    near = start - before.header_start <= MAX_GAP_BYTES
    return near and start - first.header_start <= WINDOW_BYTES


MAX_ENTRIES = 200_000
MAX_DIRECTORY_BYTES = 64 * 1024 * 1024
UNKNOWN_16 = 0xFFFF
# how many rows of the directory are unpacked before it is known whether they have one length
ROWS_AT_ONCE = 512
ZIP64_FIELD = 1
# how much of a large entry is read at once; it stays in the cache of a core
CHECKED_BYTES = 256 * 1024
MAX_UNPACKED_BYTES = 8 * 1024**3
# Deflate cannot do better than 1,032 to 1 (RFC 1951: 258 bytes for two bits).
MAX_RATIO = 1032

END = struct.Struct("<4s4H2IH")
END_MAGIC = b"PK\x05\x06"
END64_LOCATOR = struct.Struct("<4sIQI")
END64_LOCATOR_MAGIC = b"PK\x06\x07"
END64 = struct.Struct("<4sQ2H2I4Q")
END64_MAGIC = b"PK\x06\x06"
# An entry of the directory: magic, flags, method, CRC-32, both sizes, three lengths, start of the
# header.
CENTRAL = struct.Struct("<4s4x2H4x3I3H8xI")
CENTRAL_MAGIC = b"PK\x01\x02"
LENGTHS = slice(6, 9)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Directory:
    """The place of the central directory, and the number of entries that it claims."""

    start: int
    size_bytes: int
    entries: int


def read_zip_records(opened: UntrustedFile) -> dict[str, ZipRecord]:
    """Return all records by name.

    Raises `EvidenceError` naming the file, the entry and what is wrong with it.
    """
    directory = _find_directory(opened)
    if directory.entries > MAX_ENTRIES or directory.size_bytes > MAX_DIRECTORY_BYTES:
        raise opened.fault(f"zip archive with {directory.entries:,} entries is too large to read")
    entries = list(_central_entries(opened, directory))
    records = {record.name: record for record in located(opened, entries)}
    # some readers take the first of two entries with the same name, others the last
    if len(records) < len(entries):
        raise opened.fault(f"zip entry {short_text(_repeated(entries))} occurs twice")
    _check_apart(opened, records.values(), directory.start)
    # after `set_crc32_options(False)` torch writes 0 as the checksum of every entry
    if not any(record.crc for record in records.values()):
        return {name: record._replace(crc=None) for name, record in records.items()}
    _check_bytes(opened, [record for record in records.values() if not record.deflated])
    return records


def _repeated(entries: list[Entry]) -> str:
    """Return the first name that occurs twice."""
    counts = Counter(name_text(entry.name) for entry in entries)
    return next(name for name, count in counts.items() if count > 1)


def _find_directory(opened: UntrustedFile) -> _Directory:
    # Look only at the very end, without the usual search backwards. A comment after the record
    # (APPNOTE 4.3.16) could contain a second end record, and readers differ in which one they find.
    end_start = opened.size_bytes - END.size
    magic, disk, start_disk, here, entries, size_bytes, start, comment = END.unpack(
        opened.read_at(end_start, END.size)
    )
    if magic != END_MAGIC or comment:
        raise opened.fault("zip archive without an end record: it is truncated or has a comment")
    if disk or start_disk or here != entries:
        raise opened.fault("zip archive in several parts")
    directory = _Directory(start=start, size_bytes=size_bytes, entries=entries)
    directory_end = end_start
    if end_start >= END64_LOCATOR.size:
        locator = opened.read_at(end_start - END64_LOCATOR.size, END64_LOCATOR.size)
        if locator.startswith(END64_LOCATOR_MAGIC):
            directory_end, directory = _large_directory(opened, locator, directory)
    # Python's zipfile silently adds such a shift to every offset, which makes room for a second
    # archive.
    if directory.start + directory.size_bytes != directory_end:
        raise opened.fault("zip directory is not where the end record says")
    return directory


def _large_directory(
    opened: UntrustedFile, locator: bytes, small: _Directory
) -> tuple[int, _Directory]:
    """Return the 64-bit end record; the 32-bit one must agree wherever it has a value."""
    record_start = END64_LOCATOR.unpack(locator)[2]
    fields = END64.unpack(opened.read_at(record_start, END64.size))
    magic, entries, size_bytes, start = fields[0], fields[7], fields[8], fields[9]
    large = _Directory(start=start, size_bytes=size_bytes, entries=entries)
    agrees = (
        small.entries in {UNKNOWN_16, entries}
        and small.size_bytes in {UNKNOWN_32, size_bytes}
        and small.start in {UNKNOWN_32, start}
    )
    if magic != END64_MAGIC or fields[6] != entries or not agrees:
        raise opened.fault("zip archive with two end records that contradict each other")
    return record_start, large


def _central_entries(opened: UntrustedFile, directory: _Directory) -> Iterator[Entry]:
    """Yield what the directory says about each entry, after checking it."""
    data = memoryview(opened.read_at(directory.start, directory.size_bytes))
    position = number = 0
    while number < directory.entries:
        if position + CENTRAL.size > len(data):
            raise opened.fault(f"zip directory ends before entry {number + 1}")
        lengths = CENTRAL.unpack_from(data, position)[LENGTHS]
        row = struct.Struct(CENTRAL.format + "{}s{}s{}x".format(*lengths))
        # Names of the same length often follow each other, so unpack such rows together.
        rows = min((len(data) - position) // row.size, directory.entries - number, ROWS_AT_ONCE)
        entries = list(row.iter_unpack(data[position : position + rows * row.size]))
        same = next(
            (
                index
                for index, fields in enumerate(entries)
                if fields[LENGTHS] != lengths or fields[0] != CENTRAL_MAGIC
            ),
            len(entries),
        )
        if not same:
            raise opened.fault(f"zip directory is damaged at entry {number + 1}")
        yield from _entries(opened, entries[:same])
        number += same
        position += same * row.size
    # A reader that ignores the count and reads to the end would see further entries.
    if position != len(data):
        raise opened.fault("zip directory has bytes after its last entry")


def _entries(opened: UntrustedFile, rows: list[tuple[Any, ...]]) -> Iterator[Entry]:
    """Return rows as entries; rows as torch writes them need no check of each."""
    _, flags, methods, checksums, stored, sizes, *_, starts, names, _ = zip(*rows, strict=True)
    plain = set(methods) == {STORED} and not any(flag & ENCRYPTED_FLAG for flag in set(flags))
    if plain and stored == sizes and max(stored) < UNKNOWN_32 and max(starts) < UNKNOWN_32:
        return map(Entry, starts, names, methods, stored, sizes, checksums)
    return (_entry(opened, fields) for fields in rows)


def _entry(opened: UntrustedFile, fields: tuple[Any, ...]) -> Entry:
    """Return one entry after checking it, with the 64-bit values where the row has none."""
    _, flags, method, crc, stored_bytes, size_bytes, _, _, _, header_start, name, extra = fields
    if flags & ENCRYPTED_FLAG:
        raise _fault(opened, name, "is encrypted")
    if method not in {STORED, DEFLATED}:
        raise _fault(opened, name, f"is compressed by method {method}, which is not supported")
    if UNKNOWN_32 in {size_bytes, stored_bytes, header_start}:
        size_bytes, stored_bytes, header_start = _large_values(
            opened, name, (size_bytes, stored_bytes, header_start), extra
        )
    if method == STORED and stored_bytes != size_bytes:
        raise _fault(opened, name, "is stored with a size other than its own")
    # refuse a decompression bomb (CWE-409) for its claim, before anything is unpacked
    if size_bytes > stored_bytes * MAX_RATIO + MAX_RATIO:
        problem = f"claims to unpack {stored_bytes:,} bytes to {size_bytes:,}"
        raise _fault(opened, name, f"{problem}, which no compression can")
    return Entry(header_start, name, method, stored_bytes, size_bytes, crc)


def _fault(opened: UntrustedFile, name: bytes, problem: str) -> EvidenceError:
    return opened.fault(f"zip entry {short_text(name_text(name))} {problem}")


def _large_values(
    opened: UntrustedFile, name: bytes, plain: tuple[int, int, int], extra: bytes
) -> list[int]:
    """Return full size, stored size and start, with the values of the zip64 field."""
    # the field has only the values that do not fit into 32 bits, in this order (APPNOTE 4.5.3)
    large = iter(_large_numbers(extra))
    values = [next(large, -1) if value == UNKNOWN_32 else value for value in plain]
    if -1 in values:
        raise _fault(opened, name, "lacks its 64-bit sizes")
    return values


def _large_numbers(extra: bytes) -> list[int]:
    large = _extra_field(extra, ZIP64_FIELD)
    return [value for (value,) in struct.iter_unpack("<Q", large[: len(large) // 8 * 8])]


def _extra_field(extra: bytes, tag: int) -> bytes:
    position = 0
    while position + 4 <= len(extra):
        kind, size_bytes = struct.unpack_from("<2H", extra, position)
        if kind == tag:
            return extra[position + 4 : position + 4 + size_bytes]
        position += 4 + size_bytes
    return b""


def _check_apart(opened: UntrustedFile, records: Iterable[ZipRecord], limit: int) -> None:
    """Refuse records that overlap each other or the directory."""
    end = 0
    for name, start, stored_bytes, *_ in sorted(records, key=itemgetter(1, 2)):
        # With entries over the same bytes, a small archive unpacks to petabytes (D. Fifield, A
        # better zip bomb, WOOT 2019).
        if start < end or start + stored_bytes > limit:
            raise opened.fault(f"zip entry {short_text(name)} overlaps other data")
        end = start + stored_bytes


def check_unpacked(opened: UntrustedFile, records: Iterable[ZipRecord]) -> None:
    """Verify the deflated entries of an archive that no other reader unpacks.

    If they unpack to more than `MAX_UNPACKED_BYTES` together, they are not verified: the run could
    otherwise choose how long the gate works.
    """
    packed = [record for record in records if record.deflated]
    if sum(record.size_bytes for record in packed) > MAX_UNPACKED_BYTES:
        return
    for record in packed:
        shown = f"{opened.shown}: zip entry {short_text(record.name)}"
        part = file_part(opened, record.start, record.stored_bytes, shown)
        source = Inflated(part, 0, record.stored_bytes, record.size_bytes, 0, record.crc)
        for _ in source.pieces(PIECE_BYTES):
            pass


def _check_bytes(opened: UntrustedFile, records: Iterable[ZipRecord]) -> None:
    """Verify the checksum of each stored record on all cores; neighbours are read together."""
    groups = grouped(sorted(records, key=itemgetter(1)), _are_near)
    run_all([partial(_check_group, opened, group) for group in groups], available_threads())


def _are_near(first: ZipRecord, before: ZipRecord, record: ZipRecord) -> bool:
    gap = record.start - (before.start + before.stored_bytes)
    end = record.start + record.stored_bytes
    return gap <= MAX_GAP_BYTES and end - first.start <= PIECE_BYTES


def _check_group(opened: UntrustedFile, group: list[ZipRecord]) -> None:
    """Verify one record of any size, or several records that fit into one piece."""
    if len(group) == 1:
        (record,) = group
        crc = 0
        for piece in FileSpan(opened, record.start, record.stored_bytes).pieces(CHECKED_BYTES):
            crc = crc32(piece, crc)
        _check_crc(opened, record, crc)
        return
    first, last = group[0].start, group[-1]
    data = memoryview(opened.read_at(first, last.start + last.stored_bytes - first))
    for record in group:
        start = record.start - first
        _check_crc(opened, record, crc32(data[start : start + record.stored_bytes]))


def _check_crc(opened: UntrustedFile, record: ZipRecord, crc: int) -> None:
    if record.crc != crc:
        problem = f"zip entry {short_text(record.name)} is damaged"
        raise opened.fault(f"{problem}: {WRONG_CRC}", hint=DAMAGED_HINT)
