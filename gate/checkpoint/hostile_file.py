"""A file that somebody left: opened without trust, read at checked places.

Read, not mapped into memory: a mapped file that becomes shorter kills its reader with SIGBUS.
Reading into a buffer that is used again costs about a seventh more (`make bench-digest`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from gate.errors import DocumentError, EvidenceError, StorageError

if TYPE_CHECKING:
    from gate.ports import Files

CHUNK_BYTES = 1024 * 1024
SHOWN_CHARACTERS = 120
SENTENCE_CHARACTERS = 300
HINT = "The training process wrote or damaged this file; look at its output, then run again."


@dataclass(frozen=True, kw_only=True, slots=True)
class HostileFile:
    """An open regular file; `shown` names it in every error."""

    shown: str
    stream: BinaryIO
    size_bytes: int

    def fault(self, problem: str, *, hint: str = HINT) -> EvidenceError:
        """The error that says what is wrong with this file."""
        return EvidenceError(f"{self.shown}: {problem}", hint=hint)

    def read_at(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`; `EvidenceError` when the file ends before."""
        self.check_range(offset, length)
        data = os.pread(self.stream.fileno(), length, offset)
        if len(data) == length:
            return data
        # the kernel hands out at most 2 GiB at once
        buffer = bytearray(length)
        self.read_into(offset, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` (bytes) from `offset`; any number of threads may do so at once."""
        self.check_range(offset, len(view))
        descriptor = self.stream.fileno()
        while view:
            count = os.preadv(descriptor, [view], offset)
            if not count:
                raise self.fault("became shorter while it was read")
            offset += count
            view = view[count:]

    def check_range(self, offset: int, length: int) -> None:
        """Refuse a range that does not lie inside the file."""
        if offset < 0 or length < 0 or offset + length > self.size_bytes:
            raise self.fault("is cut short or points behind its own end")

    def pieces(self, offset: int, length: int) -> Iterator[bytes]:
        """The same bytes in chunks of 1 MiB, so that memory does not grow with the file."""
        end = offset + length
        for start in range(offset, end, CHUNK_BYTES):
            yield self.read_at(start, min(CHUNK_BYTES, end - start))


@contextmanager
def open_hostile(files: Files, path: Path, shown: str, *, max_bytes: int) -> Iterator[HostileFile]:
    """Open a file of the run's; every fault of reading or parsing becomes an `EvidenceError`.

    That holds for links, pipes and folders, for files above `max_bytes`, and for what the body
    finds with the strict parsers.
    """
    try:
        with files.open_binary(path, max_bytes=max_bytes) as stream:
            size_bytes = stream.seek(0, os.SEEK_END)
            stream.seek(0)
            yield HostileFile(shown=shown, stream=stream, size_bytes=size_bytes)
    except StorageError as error:
        raise EvidenceError(
            f"{shown}: cannot be read: {plain_text(error.message)}",
            hint="It must be a regular file: no link, no pipe, no folder, and not too large.",
        ) from error
    except DocumentError as error:
        details = tuple(map(plain_text, error.details))
        raise EvidenceError(plain_text(error.message), hint=HINT, details=details) from error


def plain_text(text: str) -> str:
    """Hostile text with what no terminal should see escaped, 300 characters at most."""
    cut = text[:SENTENCE_CHARACTERS]
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in cut)


def short_text(text: str) -> str:
    """Hostile text as a quoted, escaped, short piece of a message."""
    cut = text[:SHOWN_CHARACTERS]
    return ascii(cut) + ("..." if len(text) > SHOWN_CHARACTERS else "")
