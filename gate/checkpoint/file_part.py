"""A range of an open file that is read as a file of its own: a zip entry, a piece of a shard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gate.checkpoint.untrusted_files import UntrustedFile


@dataclass(frozen=True, kw_only=True, slots=True)
class FilePart(UntrustedFile):
    """Bytes `start` to `start + size_bytes` of `whole`; positions count from `start`."""

    whole: UntrustedFile
    start: int

    def read_at(self, offset: int, length: int) -> bytes:
        """As in `UntrustedFile`."""
        # against this range: the whole file would let a reader run into the neighbours
        self.check_range(offset, length)
        return self.whole.read_at(self.start + offset, length)

    def read_into(self, offset: int, view: memoryview) -> None:
        """As in `UntrustedFile`."""
        self.check_range(offset, len(view))
        self.whole.read_into(self.start + offset, view)

    @contextmanager
    def mapped(self, offset: int, length: int) -> Iterator[memoryview]:
        """As in `UntrustedFile`."""
        self.check_range(offset, length)
        with self.whole.mapped(self.start + offset, length) as view:
            yield view


def file_part(whole: UntrustedFile, start: int, size_bytes: int, shown: str) -> FilePart:
    """The range as a file called `shown`; `EvidenceError` when it does not lie inside."""
    whole.check_range(start, size_bytes)
    return FilePart(
        shown=shown, stream=whole.stream, size_bytes=size_bytes, whole=whole, start=start
    )
