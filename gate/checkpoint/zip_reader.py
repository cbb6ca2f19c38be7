"""Finds the records of a zip archive, as `torch.save` and NumPy write it.

Only what these writers make is read: stored or deflated entries, no encryption, no comment, every
name once, no two entries over the same bytes. Anything else is refused, because two readers could
see two different archives in it. Source: PKWARE APPNOTE 6.3.10, sections 4.3 and 4.5.3. Checksums
are not verified: the gate hashes the bytes themselves.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gate.checkpoint.hostile_file import HostileFile, short_text

MAX_ENTRIES = 200_000
MAX_DIRECTORY_BYTES = 64 * 1024 * 1024
UNKNOWN_32 = 0xFFFFFFFF
UNKNOWN_16 = 0xFFFF
ENCRYPTED_FLAG = 0x1
ZIP64_FIELD = 1
STORED, DEFLATED = 0, 8
# Deflate cannot do better than 1,032 to 1 (RFC 1951: 258 bytes for two bits).
MAX_RATIO = 1032

END = struct.Struct("<4s4H2IH")
END_MAGIC = b"PK\x05\x06"
END64_LOCATOR = struct.Struct("<4sIQI")
END64_LOCATOR_MAGIC = b"PK\x06\x07"
END64 = struct.Struct("<4sQ2H2I4Q")
END64_MAGIC = b"PK\x06\x06"
CENTRAL = struct.Struct("<4s6H3I5H2I")
CENTRAL_MAGIC = b"PK\x01\x02"
LOCAL = struct.Struct("<4s5H3I2H")
LOCAL_MAGIC = b"PK\x03\x04"


@dataclass(frozen=True, kw_only=True, slots=True)
class ZipRecord:
    """An entry: where its `stored_bytes` lie, and how many they are once they are unpacked."""

    name: str
    start: int
    stored_bytes: int
    size_bytes: int
    deflated: bool


class _Entry(NamedTuple):
    """What the central directory says of an entry."""

    name: str
    header_start: int
    method: int
    stored_bytes: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Directory:
    """The central directory: its place, and how many entries it says to have."""

    start: int
    size_bytes: int
    entries: int


def read_zip_records(opened: HostileFile) -> dict[str, ZipRecord]:
    """All records by name.

    Raises `EvidenceError` naming the file, the entry and what is wrong with it.
    """
    directory = _find_directory(opened)
    if directory.entries > MAX_ENTRIES or directory.size_bytes > MAX_DIRECTORY_BYTES:
        raise opened.fault(f"zip archive with {directory.entries:,} entries is too large to read")
    records: dict[str, ZipRecord] = {}
    for entry in _central_entries(opened, directory):
        if entry.name in records:
            raise opened.fault(f"zip entry {short_text(entry.name)} is there twice")
        records[entry.name] = _locate(opened, entry)
    _check_apart(opened, records, directory.start)
    return records


def _find_directory(opened: HostileFile) -> _Directory:
    end_start = opened.size_bytes - END.size
    magic, disk, start_disk, here, entries, size_bytes, start, comment = END.unpack(
        opened.read_at(end_start, END.size)
    )
    if magic != END_MAGIC or comment:
        raise opened.fault("zip archive without its end record: it is cut short or has a comment")
    if disk or start_disk or here != entries:
        raise opened.fault("zip archive in several parts")
    directory = _Directory(start=start, size_bytes=size_bytes, entries=entries)
    directory_end = end_start
    if end_start >= END64_LOCATOR.size:
        locator = opened.read_at(end_start - END64_LOCATOR.size, END64_LOCATOR.size)
        if locator.startswith(END64_LOCATOR_MAGIC):
            directory_end, directory = _large_directory(opened, locator, directory)
    if directory.start + directory.size_bytes != directory_end:
        raise opened.fault("zip directory does not lie where the end record says")
    return directory


def _large_directory(
    opened: HostileFile, locator: bytes, small: _Directory
) -> tuple[int, _Directory]:
    """The 64-bit end record; the 32-bit one must agree wherever it holds a value."""
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


def _central_entries(opened: HostileFile, directory: _Directory) -> Iterator[_Entry]:
    """Each entry, its sizes checked."""
    data = opened.read_at(directory.start, directory.size_bytes)
    position = 0
    for number in range(1, directory.entries + 1):
        if position + CENTRAL.size > len(data):
            raise opened.fault(f"zip directory ends before entry {number}")
        fields = CENTRAL.unpack_from(data, position)
        name_end = position + CENTRAL.size + fields[10]
        extra_end = name_end + fields[11]
        name_bytes, extra = data[position + CENTRAL.size : name_end], data[name_end:extra_end]
        position = extra_end + fields[12]
        if fields[0] != CENTRAL_MAGIC or position > len(data):
            raise opened.fault(f"zip directory is broken at entry {number}")
        name = name_bytes.decode("utf-8", "replace")
        _check_plain(opened, name, fields)
        yield _sized_entry(opened, name, fields, extra)
    if position != len(data):
        raise opened.fault("zip directory holds bytes behind its last entry")


def _check_plain(opened: HostileFile, name: str, fields: tuple[int, ...]) -> None:
    flags, method = fields[3], fields[4]
    if flags & ENCRYPTED_FLAG:
        raise opened.fault(f"zip entry {short_text(name)} is encrypted")
    if method not in {STORED, DEFLATED}:
        raise opened.fault(
            f"zip entry {short_text(name)} is compressed by method {method}, which is not read"
        )


def _sized_entry(opened: HostileFile, name: str, fields: tuple[int, ...], extra: bytes) -> _Entry:
    """Sizes and header start; what does not fit 32 bits stands in the zip64 field, in order."""
    method, plain = fields[4], (fields[9], fields[8], fields[16])
    large = iter(_large_numbers(extra) if UNKNOWN_32 in plain else ())
    # the order of the field: full size, stored size, start
    found = [next(large, -1) if value == UNKNOWN_32 else value for value in plain]
    size_bytes, stored_bytes, header_start = found
    if -1 in found:
        raise opened.fault(f"zip entry {short_text(name)} lacks its 64-bit sizes")
    if method == STORED and stored_bytes != size_bytes:
        raise opened.fault(f"zip entry {short_text(name)} is stored in another size than its own")
    if size_bytes > stored_bytes * MAX_RATIO + MAX_RATIO:
        raise opened.fault(
            f"zip entry {short_text(name)} says to unpack {stored_bytes:,} bytes to "
            f"{size_bytes:,}, which no compression can"
        )
    return _Entry(name, header_start, method, stored_bytes, size_bytes)


def _large_numbers(extra: bytes) -> list[int]:
    large = _extra_field(extra, ZIP64_FIELD)
    return [value for (value,) in struct.iter_unpack("<Q", large[: len(large) // 8 * 8])]


def _extra_field(extra: bytes, wanted: int) -> bytes:
    position = 0
    while position + 4 <= len(extra):
        kind, size_bytes = struct.unpack_from("<2H", extra, position)
        if kind == wanted:
            return extra[position + 4 : position + 4 + size_bytes]
        position += 4 + size_bytes
    return b""


def _locate(opened: HostileFile, entry: _Entry) -> ZipRecord:
    """Where the data begins, after checking that the local header tells the same story."""
    name, header_start = entry.name, entry.header_start
    fields = LOCAL.unpack(opened.read_at(header_start, LOCAL.size))
    magic, flags, method, name_bytes, extra_bytes = (
        fields[0], fields[2], fields[3], fields[9], fields[10],
    )  # fmt: skip
    local_name = opened.read_at(header_start + LOCAL.size, name_bytes).decode("utf-8", "replace")
    contradicts = method != entry.method or flags & ENCRYPTED_FLAG or local_name != name
    if magic != LOCAL_MAGIC or contradicts:
        raise opened.fault(f"zip entry {short_text(name)}: its two headers contradict each other")
    return ZipRecord(
        name=name,
        start=header_start + LOCAL.size + name_bytes + extra_bytes,
        stored_bytes=entry.stored_bytes,
        size_bytes=entry.size_bytes,
        deflated=method == DEFLATED,
    )


def _check_apart(opened: HostileFile, records: dict[str, ZipRecord], limit: int) -> None:
    """No record may reach into the next one or into the directory."""
    end = 0
    for record in sorted(records.values(), key=lambda record: (record.start, record.stored_bytes)):
        if record.start < end or record.start + record.stored_bytes > limit:
            raise opened.fault(f"zip entry {short_text(record.name)} lies over other data")
        end = record.start + record.stored_bytes
