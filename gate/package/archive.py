"""Read a package in one pass, as untrusted bytes: only an archive that the gate writes is accepted.

`packing.py` uses the same digests when it writes. Each of the two digests (whole package, current
file) has its own thread. The caller goes on reading or writing while the threads hash the pieces
before, so nobody waits at every piece. hashlib releases the interpreter lock for all but tiny
pieces, so the threads do run at the same time.
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

# Waking a thread takes longer than hashing fewer bytes than this.
LEAST_BYTES: Final = 64 * 1024
# How many pieces a digest may lag behind, and the size of a piece. Measured on two cores with
# pieces of 128 KiB to 4 MiB: 2 MiB took the least time. Twice the lag was slightly faster, for
# twice the memory.
BEHIND: Final = 6
PIECE_BYTES: Final = 2 * 1024 * 1024
Piece = bytes | memoryview


def new_pieces() -> Iterator[memoryview]:
    """Yield buffers of `PIECE_BYTES` for `TwoDigests.inside`, the same few in turn, without end."""
    # Allocated once, because touching fresh memory for every piece takes as long as writing it.
    # One buffer more than `BEHIND`: the caller fills it while the threads still read the others.
    return cycle([memoryview(bytearray(PIECE_BYTES)) for _ in range(BEHIND + 1)])


class Readable(Protocol):
    """A binary stream that fills an existing buffer, as every binary file of Python does."""

    def read(self, size: int, /) -> bytes:
        """Read up to `size` bytes, as `io.RawIOBase.read` does."""
        ...

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the buffer as far as possible, as `io.BufferedIOBase.readinto` does."""
        ...


class _Digest:
    """One SHA-256, computed by a thread that the first call of `take` starts.

    Until then a caller may update `sha256` itself; afterwards only after `settle`.
    """

    def __init__(self) -> None:
        self.sha256 = hashlib.sha256()
        self._pieces: SimpleQueue[Piece | None] = SimpleQueue()
        self._done: SimpleQueue[None] = SimpleQueue()
        self._left = 0
        self._thread: Thread | None = None

    def take(self, piece: Piece) -> None:
        """Queue a piece for the thread; its bytes must not change before `BEHIND` more pieces."""
        if self._thread is None:
            # a daemon thread cannot keep the process alive if `end` is never reached
            self._thread = Thread(target=self._work, daemon=True)
            self._thread.start()
        self._pieces.put(piece)
        self._left += 1
        self.settle(BEHIND)

    def settle(self, left: int = 0) -> None:
        """Wait until at most `left` queued pieces are not digested yet."""
        while self._left > left:
            self._done.get()
            self._left -= 1

    def end(self) -> None:
        """Stop the thread and wait for it, if one was started."""
        if self._thread is not None:
            self._pieces.put(None)
            self._thread.join()

    def _work(self) -> None:
        while (piece := self._pieces.get()) is not None:
            self.sha256.update(piece)
            self._done.put(None)


class TwoDigests:
    """The SHA-256 of a whole package and the one of its current file, updated together."""

    def __init__(self) -> None:
        self._whole = _Digest()
        self._file = _Digest()

    def begin_file(self) -> None:
        """Start the digest of the next file."""
        self._file.settle()
        self._file.sha256 = hashlib.sha256()

    def around(self, data: bytes) -> None:
        """Add bytes that belong to no file: a header, padding, or the end mark."""
        self._whole.settle()
        self._whole.sha256.update(data)

    def inside(self, data: Piece) -> None:
        """Add bytes of the current file; `data` must not change before `BEHIND` more calls."""
        for digest in (self._whole, self._file):
            if len(data) < LEAST_BYTES:
                # in order: the queued pieces come before this one
                digest.settle()
                digest.sha256.update(data)
            else:
                digest.take(data)

    def file_digest(self) -> str:
        """Return the SHA-256 of the current file so far, in hexadecimal."""
        self._file.settle()
        return self._file.sha256.hexdigest()

    def whole_digest(self) -> str:
        """Return the SHA-256 of the package so far, in hexadecimal."""
        self._whole.settle()
        return self._whole.sha256.hexdigest()

    def end(self) -> None:
        """Stop both threads."""
        self._whole.end()
        self._file.end()


@contextmanager
def two_digests() -> Iterator[TwoDigests]:
    """Provide a `TwoDigests` and stop its threads when the body ends, also by an exception."""
    digests = TwoDigests()
    try:
        yield digests
    finally:
        digests.end()


MAX_KEPT_BYTES = 64 * 1024 * 1024


def read_archive(stream: BinaryIO, *, size_bytes: int, keep: frozenset[str]) -> Archive:
    """Read a package of exactly `size_bytes` and return its members with their digests.

    Only the members named in `keep` have their content in the result. Nothing is written to disk
    and no name is followed. Raises `AttestationError` for anything that `gate.package.packing` does
    not write: links and folders, unsafe, unsorted or colliding names, bytes after the end, or a
    kept member above `MAX_KEPT_BYTES`.
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
    # One order only, so that the same members cannot make two different packages.
    if names[:-1] != sorted(names[:-1]):
        raise not_canonical()
    check_names(names)
    _check_end(reader, size_bytes)
    return Archive(sha256=reader.digests.whole_digest(), size_bytes=size_bytes, members=members)


class _DigestingReader:
    """Reads exactly the bytes asked for, digests them, and never exceeds the announced size."""

    def __init__(self, stream: BinaryIO, size_bytes: int, digests: TwoDigests) -> None:
        self._stream = stream
        self.left = size_bytes
        self.digests = digests
        self._pieces = new_pieces()

    def around(self, count: int) -> bytes:
        """Read and return `count` bytes that belong to no member."""
        data = self._take(count)
        self.digests.around(data)
        return data

    def inside(self, count: int) -> memoryview:
        """Read up to `count` bytes of the current member, at most one piece.

        The buffer is reused: its content is valid for `BEHIND` more calls, as
        `TwoDigests.inside` requires. Raises `AttestationError` when the package ends before.
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
        # The size in a header is a claim: compare it with what is left before reading or
        # allocating.
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
    # Only kept members are held in memory, so only their size has this limit.
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
    """Refuse anything but zeros after the first block of the end mark, which is read already."""
    rest = END_BYTES - BLOCK_BYTES
    # The size has to be the smallest multiple of a record that holds the content, as tar pads it.
    if size_bytes % RECORD_BYTES or not rest <= reader.left < rest + RECORD_BYTES:
        raise not_canonical()
    if any(reader.around(reader.left)):
        raise not_canonical()
