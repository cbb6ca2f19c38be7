"""Writing a package: a ustar archive whose bytes depend on names and contents alone.

One pass: each file is read once, and what is hashed is what is written. `SHA256SUMS` covers all
other members, so it can only be the last one; the others are sorted byte-wise by name.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from gate.errors import AttestationError, StorageError
from gate.package.seal_records import Package, PackageMember
from gate.package.two_digests import TwoDigests, two_digests
from gate.package.ustar import (
    END_BYTES,
    MAX_MEMBER_BYTES,
    RECORD_BYTES,
    SUMS_NAME,
    check_names,
    header,
    padding,
    sums_text,
)
from gate.system.files.port import Files

# what two digests and the writing share stays in the processor's cache
CHUNK_BYTES = 1024 * 1024


def pack(
    members: Sequence[PackageMember], *, path: Path, target: BinaryIO, files: Files
) -> Package:
    """Write all members to `target`; `path` is where the caller puts those bytes.

    Raises `AttestationError` for a name that no package may hold, before anything is written, and
    `StorageError` when a file cannot be read, changes meanwhile, or the disk is full.
    """
    # by code points, which for the ASCII names allowed here is the order of bytes
    ordered = sorted(members, key=lambda member: member.name)
    if SUMS_NAME in {member.name for member in ordered}:
        raise AttestationError(
            f"{SUMS_NAME} is written by the packer itself",
            hint="Leave it out of the members.",
        )
    check_names([*(member.name for member in ordered), SUMS_NAME])
    with two_digests() as digests:
        writer = _ArchiveWriter(target, digests)
        written = [(member.name, _add(writer, member, files)) for member in ordered]
        sums = sums_text(written)
        written.append((SUMS_NAME, writer.add(SUMS_NAME, io.BytesIO(sums), len(sums))))
        writer.finish()
        return Package(
            path=path,
            sha256=digests.whole_digest(),
            size_bytes=writer.size_bytes,
            members=tuple(written),
        )


def _add(writer: _ArchiveWriter, member: PackageMember, files: Files) -> str:
    if member.path is None:
        content = member.content or b""
        return writer.add(member.name, io.BytesIO(content), len(content))
    with files.open_binary(member.path, max_bytes=MAX_MEMBER_BYTES) as stream:
        size_bytes = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        digest = writer.add(member.name, cast("Readable", stream), size_bytes)
    # hashed while it is packed, so nothing can change between the check and the writing (CWE-367)
    if member.sha256 not in {"", digest}:
        raise StorageError(
            f"{member.name} has changed on disk since it was compared",
            hint="Something else writes to the output folder; stop it, then run again.",
        )
    return digest


class Readable(Protocol):
    """What is read into memory that is there already, as every file of Python can."""

    def read(self, size: int, /) -> bytes:
        """As `io.RawIOBase.read`."""
        ...

    def readinto(self, buffer: memoryview, /) -> int:
        """As `io.BufferedIOBase.readinto`."""
        ...


class _ArchiveWriter:
    """Counts and digests everything on its way to the target."""

    def __init__(self, target: BinaryIO, digests: TwoDigests) -> None:
        self._target = target
        self._digests = digests
        # taken once: fresh memory for every piece takes as long as writing it
        self._pieces = tuple(memoryview(bytearray(CHUNK_BYTES)) for _ in range(2))
        self.size_bytes = 0

    def add(self, name: str, stream: Readable, size_bytes: int) -> str:
        """Write one member of exactly that size; return its SHA-256."""
        self._around(header(name, size_bytes))
        self._digests.begin_file()
        left = size_bytes
        # in turns: one is digested while it is written, and while the next is read
        for view in cycle(self._pieces):
            chunk = view[: stream.readinto(view[: min(CHUNK_BYTES, left)])]
            if not chunk:
                break
            self._digests.inside(chunk)
            self._write(chunk)
            left -= len(chunk)
        # grown or shrunk since its size went into the header
        if left or stream.read(1):
            raise StorageError(
                f"{name} changed while it was packed", hint="Wait until nothing writes to it."
            )
        self._around(padding(size_bytes))
        return self._digests.file_digest()

    def finish(self) -> None:
        """Write the end mark and fill the last record."""
        self._around(bytes(END_BYTES))
        self._around(bytes(-self.size_bytes % RECORD_BYTES))

    def _around(self, data: bytes) -> None:
        self._digests.around(data)
        self._write(data)

    def _write(self, data: bytes | memoryview) -> None:
        try:
            self._target.write(data)
        except OSError as error:
            raise StorageError(
                f"the package could not be written: {error.strerror}",
                hint="Free some space on the disk, then run again.",
            ) from error
        self.size_bytes += len(data)
