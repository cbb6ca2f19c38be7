"""Reading a package: one pass over untrusted bytes, every header held against our own.

Both read the same piece of memory at the same time, each in a thread of its own; the caller writes
or reads the next piece meanwhile. hashlib lets go of the interpreter for all but tiny pieces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import BinaryIO, Final

from gate.errors import AttestationError
from gate.package.seal_records import Archive, ArchiveMember
from gate.package.ustar import (
    BLOCK_BYTES,
    END_BYTES,
    MAX_MEMBERS,
    RECORD_BYTES,
    SUMS_NAME,
    check_names,
    not_canonical,
    padding,
    parse_header,
)

# for less, starting a thread takes longer than hashing
LEAST_BYTES: Final = 64 * 1024


class TwoDigests:
    """The digest of everything, and that of the file that is being read or written now."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._running: tuple[Future[None], ...] = ()
        self._whole = hashlib.sha256()
        self._file = hashlib.sha256()

    def begin_file(self) -> None:
        """From here on a new file is digested."""
        self._settle()
        self._file = hashlib.sha256()

    def around(self, data: bytes) -> None:
        """Bytes that belong to no file: headers, padding, the end."""
        self._settle()
        self._whole.update(data)

    def inside(self, data: bytes | memoryview) -> None:
        """Bytes of the file; `data` must not change before the next call."""
        self._settle()
        if len(data) < LEAST_BYTES:
            self._whole.update(data)
            self._file.update(data)
            return
        self._running = (
            self._pool.submit(self._whole.update, data),
            self._pool.submit(self._file.update, data),
        )

    def file_digest(self) -> str:
        """Of the file so far, in hexadecimal."""
        self._settle()
        return self._file.hexdigest()

    def whole_digest(self) -> str:
        """Of everything so far, in hexadecimal."""
        self._settle()
        return self._whole.hexdigest()

    def _settle(self) -> None:
        # one piece at a time: two threads in one digest would mix their order
        wait(self._running)
        self._running = ()


@contextmanager
def two_digests() -> Iterator[TwoDigests]:
    """Both digests, with their threads while the body runs."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield TwoDigests(pool)


CHUNK_BYTES = 4 * 1024 * 1024
MAX_KEPT_BYTES = 64 * 1024 * 1024


def read_archive(stream: BinaryIO, *, size_bytes: int, keep: frozenset[str]) -> Archive:
    """Read a package of exactly `size_bytes`, holding the content of the members in `keep`.

    Raises `AttestationError` for anything that `gate.package.packing` does not write:
    links and folders, unsafe, unsorted or colliding names, bytes after the end, a kept member above
    `MAX_KEPT_BYTES`. Nothing is written to disk and no name is followed.
    """
    with two_digests() as digests:
        return _read(_DigestingReader(stream, size_bytes, digests), size_bytes, keep)


def _read(reader: _DigestingReader, size_bytes: int, keep: frozenset[str]) -> Archive:
    members = tuple(_members(reader, keep))
    if not members or members[-1].name != SUMS_NAME:
        raise AttestationError(
            f"the package does not end with {SUMS_NAME}",
            hint="It is incomplete or was made by another tool; fetch it again.",
        )
    names = [member.name for member in members]
    # one order only: so the same members can have no second package
    if names[:-1] != sorted(names[:-1]):
        raise not_canonical()
    check_names(names)
    _check_end(reader, size_bytes)
    return Archive(sha256=reader.digests.whole_digest(), size_bytes=size_bytes, members=members)


class _DigestingReader:
    """Hands out exactly what is asked for, and no more than the size that was announced."""

    def __init__(self, stream: BinaryIO, size_bytes: int, digests: TwoDigests) -> None:
        self._stream = stream
        self.left = size_bytes
        self.digests = digests

    def around(self, count: int) -> bytes:
        """Bytes that belong to no member."""
        data = self._take(count)
        self.digests.around(data)
        return data

    def inside(self, count: int) -> bytes:
        """Bytes of the member that is being read; their digest is made while the next are read."""
        data = self._take(count)
        self.digests.inside(data)
        return data

    def _take(self, count: int) -> bytes:
        # a header's size is a claim: it is held against what is left before a byte of it is read
        data = self._stream.read(count) if count <= self.left else b""
        if len(data) != count:
            raise AttestationError(
                "the package is truncated", hint="The file was cut off; fetch it again."
            )
        self.left -= count
        return data


def _members(reader: _DigestingReader, keep: frozenset[str]) -> Iterator[ArchiveMember]:
    for _ in range(MAX_MEMBERS + 1):
        block = reader.around(BLOCK_BYTES)
        if not any(block):
            return
        name, size_bytes = parse_header(block)
        yield _member(reader, name, size_bytes, kept=name in keep)
    raise AttestationError(
        f"the package holds more than {MAX_MEMBERS:,} files",
        hint="repro-gate writes no such package; do not unpack it.",
    )


def _member(reader: _DigestingReader, name: str, size_bytes: int, *, kept: bool) -> ArchiveMember:
    if kept and size_bytes > MAX_KEPT_BYTES:
        raise AttestationError(
            f"{name} in the package has {size_bytes:,} bytes, the limit is {MAX_KEPT_BYTES:,}",
            hint="repro-gate writes no such file; do not trust this package.",
        )
    reader.digests.begin_file()
    content = bytearray()
    left = size_bytes
    while left:
        chunk = reader.inside(min(CHUNK_BYTES, left))
        left -= len(chunk)
        if kept:
            content += chunk
    digest = reader.digests.file_digest()
    # padding and end mark must be zeros, or two files with one content would have two digests
    if any(reader.around(len(padding(size_bytes)))):
        raise not_canonical()
    return ArchiveMember(
        name=name,
        size_bytes=size_bytes,
        sha256=digest,
        content=bytes(content) if kept else None,
    )


def _check_end(reader: _DigestingReader, size_bytes: int) -> None:
    """One block of the end mark is read already; the rest of the record holds nothing."""
    rest = END_BYTES - BLOCK_BYTES
    if size_bytes % RECORD_BYTES or not rest <= reader.left < rest + RECORD_BYTES:
        raise not_canonical()
    if any(reader.around(reader.left)):
        raise not_canonical()
