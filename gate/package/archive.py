"""Reading a package: one pass over untrusted bytes, every header held against our own.

Both digests read the same pieces of memory, each in a thread of its own and some pieces behind the
caller, who writes or reads meanwhile: so nobody waits for the other at every piece. hashlib lets go
of the interpreter for all but tiny pieces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from queue import SimpleQueue
from threading import Thread
from typing import BinaryIO, Final, Protocol, cast

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
    truncated,
)

# for less, waking a thread takes longer than hashing
LEAST_BYTES: Final = 64 * 1024
# How far a digest may be behind, and in which pieces. Of 128 KiB to 4 MiB on two cores 2 MiB took
# the least time; twice as far behind was a little faster still, for twice the memory.
BEHIND: Final = 6
PIECE_BYTES: Final = 2 * 1024 * 1024
Piece = bytes | memoryview


def new_pieces() -> Iterator[memoryview]:
    """Memory for pieces that are handed to `TwoDigests.inside` in turns, without end."""
    # taken once: fresh memory for every piece takes as long as writing it
    return cycle([memoryview(bytearray(PIECE_BYTES)) for _ in range(BEHIND + 1)])


class Readable(Protocol):
    """What is read into memory that is there already, as every file of Python can."""

    def read(self, size: int, /) -> bytes:
        """As `io.RawIOBase.read`."""
        ...

    def readinto(self, buffer: memoryview, /) -> int:
        """As `io.BufferedIOBase.readinto`."""
        ...


class _Digest:
    """A digest that a thread works on; one that is not started does so in the caller's."""

    def __init__(self) -> None:
        self.sha256 = hashlib.sha256()
        self._pieces: SimpleQueue[Piece | None] = SimpleQueue()
        self._done: SimpleQueue[None] = SimpleQueue()
        self._left = 0
        self._thread: Thread | None = None

    def take(self, piece: Piece) -> None:
        """Digest a piece in time; it must not change before `BEHIND` more have been taken."""
        if self._thread is None:
            self._thread = Thread(target=self._work, daemon=True)
            self._thread.start()
        self._pieces.put(piece)
        self._left += 1
        self.settle(BEHIND)

    def settle(self, left: int = 0) -> None:
        """Wait until no more than so many pieces are left."""
        while self._left > left:
            self._done.get()
            self._left -= 1

    def end(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._pieces.put(None)
            self._thread.join()

    def _work(self) -> None:
        while (piece := self._pieces.get()) is not None:
            self.sha256.update(piece)
            self._done.put(None)


class TwoDigests:
    """The digest of everything, and that of the file that is being read or written now."""

    def __init__(self) -> None:
        self._whole = _Digest()
        self._file = _Digest()

    def begin_file(self) -> None:
        """From here on a new file is digested."""
        self._file.settle()
        self._file.sha256 = hashlib.sha256()

    def around(self, data: bytes) -> None:
        """Bytes that belong to no file: headers, padding, the end."""
        self._whole.settle()
        self._whole.sha256.update(data)

    def inside(self, data: Piece) -> None:
        """Bytes of the file; `data` must not change before `BEHIND` more calls."""
        for digest in (self._whole, self._file):
            if len(data) < LEAST_BYTES:
                digest.settle()
                digest.sha256.update(data)
            else:
                digest.take(data)

    def file_digest(self) -> str:
        """Of the file so far, in hexadecimal."""
        self._file.settle()
        return self._file.sha256.hexdigest()

    def whole_digest(self) -> str:
        """Of everything so far, in hexadecimal."""
        self._whole.settle()
        return self._whole.sha256.hexdigest()

    def end(self) -> None:
        """End both threads."""
        self._whole.end()
        self._file.end()


@contextmanager
def two_digests() -> Iterator[TwoDigests]:
    """Both digests, with their threads while the body runs."""
    digests = TwoDigests()
    try:
        yield digests
    finally:
        digests.end()


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
        self._pieces = new_pieces()

    def around(self, count: int) -> bytes:
        """Bytes that belong to no member."""
        data = self._take(count)
        self.digests.around(data)
        return data

    def inside(self, count: int) -> memoryview:
        """Bytes of the member that is being read, as many as a piece holds.

        They stay for a while, as `TwoDigests.inside` wants it, and then others take their place.
        """
        view = next(self._pieces)[:count]
        if len(view) > self.left or not self._fill(view):
            raise truncated()
        self.left -= len(view)
        self.digests.inside(view)
        return view

    def _fill(self, view: memoryview) -> bool:
        stream = cast("Readable", self._stream)
        while view:
            read = stream.readinto(view)
            if not read:
                return False
            view = view[read:]
        return True

    def _take(self, count: int) -> bytes:
        # a header's size is a claim: it is held against what is left before a byte of it is read
        data = self._stream.read(count) if count <= self.left else b""
        if len(data) != count:
            raise truncated()
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
        chunk = reader.inside(left)
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
