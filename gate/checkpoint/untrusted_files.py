"""An untrusted file: opened safely, read within checked ranges.

Small pieces are read, large stretches mapped, one after the other, so that neither memory nor
address space grows with the file. A file that becomes shorter just while a stretch is mapped ends
its reader with SIGBUS. So the programs that map are child processes, and their parent explains how
they ended: `gate.isolation.confined_look` for the command line,
`gate.pipelines.fresh_process` for the gate.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from gate.errors import DocumentError, EvidenceError, StorageError
from gate.text.untrusted_text import plain_text

CHUNK_BYTES = 1024 * 1024
SHORTER = "became shorter while it was read"
HINT = "The training process wrote to or damaged this file; check its output, then run again."
SAVE_HINT = "Save it with torch.save(state, path) or as safetensors, and let the script finish."


class ReadableFiles(Protocol):
    """What reading a saved state needs of a file system; none of it follows a link."""

    def open_binary(self, path: Path, *, max_bytes: int) -> AbstractContextManager[BinaryIO]:
        """Open a regular file of at most `max_bytes`; else `StorageError`."""
        ...

    def is_folder(self, path: Path) -> bool:
        """Whether a real folder lies there."""
        ...

    def list_names(self, folder: Path, *, max_names: int) -> tuple[str, ...]:
        """The names in a folder, sorted; `StorageError` above `max_names`."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class UntrustedFile:
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
                raise self.fault(SHORTER)
            offset += count
            view = view[count:]

    @contextmanager
    def mapped(self, offset: int, length: int) -> Iterator[memoryview]:
        """The bytes of a range, not copied where the file can be mapped; valid inside the body.

        The view can be written to, which foreign functions ask for; that would change no file.
        """
        self.check_range(offset, length)
        if not length:
            # which would map the whole file
            yield memoryview(bytearray())
            return
        # mmap(2) takes only offsets that are multiples of the page size
        skipped = offset % mmap.ALLOCATIONGRANULARITY
        descriptor = self.stream.fileno()
        try:
            mapping = mmap.mmap(
                descriptor, skipped + length, access=mmap.ACCESS_COPY, offset=offset - skipped
            )
        # mmap compares with the size that the file has now, which another process may have changed
        except ValueError as error:
            raise self.fault(SHORTER) from error
        except OSError:
            # some file systems have no maps
            held = memoryview(bytearray(length))
            self.read_into(offset, held)
            yield held
            return
        whole = memoryview(mapping)
        view = whole[skipped:]
        try:
            yield view
        finally:
            # an error on its way out may still hold a part; it is freed with the error then
            with suppress(BufferError):
                view.release()
                whole.release()
                mapping.close()

    def check_range(self, offset: int, length: int) -> None:
        """Refuse a range that does not lie inside the file."""
        if offset < 0 or length < 0 or offset + length > self.size_bytes:
            raise self.fault("is truncated or points past its own end")

    def pieces(self, offset: int, length: int) -> Iterator[bytes]:
        """The same bytes in chunks of 1 MiB, so that memory does not grow with the file."""
        end = offset + length
        for start in range(offset, end, CHUNK_BYTES):
            yield self.read_at(start, min(CHUNK_BYTES, end - start))


@contextmanager
def open_untrusted(
    files: ReadableFiles, path: Path, shown: str, *, max_bytes: int
) -> Iterator[UntrustedFile]:
    """Open a file of the run's; every fault of reading or parsing becomes an `EvidenceError`.

    That holds for links, pipes and folders, for files above `max_bytes`, and for what the body
    finds with the strict parsers.
    """
    try:
        with files.open_binary(path, max_bytes=max_bytes) as stream:
            size_bytes = stream.seek(0, os.SEEK_END)
            stream.seek(0)
            yield UntrustedFile(shown=shown, stream=stream, size_bytes=size_bytes)
    except StorageError as error:
        raise EvidenceError(
            f"{shown}: cannot be read: {plain_text(error.message)}",
            hint="It must be a regular file: no link, no pipe, no folder, and not too large.",
        ) from error
    except DocumentError as error:
        details = tuple(map(plain_text, error.details))
        raise EvidenceError(plain_text(error.message), hint=HINT, details=details) from error
