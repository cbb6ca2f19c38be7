"""A file on its way out: read in pieces as the network takes them, and within a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO

BLOCK_BYTES = 64 * 1024


class UploadStalledError(Exception):
    """The other side takes bytes too slowly; `seconds` is the time that it had."""

    def __init__(self, seconds: float) -> None:
        super().__init__("stalled")
        self.seconds = seconds


class Upload:
    """What requests sends as a stream of a known length: no part of it is kept."""

    def __init__(
        self, stream: BinaryIO, size_bytes: int, *, seconds: float, monotonic: Callable[[], float]
    ) -> None:
        self._stream = stream
        self._size_bytes = size_bytes
        self._seconds = seconds
        self._monotonic = monotonic
        self._ends_at = monotonic() + seconds

    def __len__(self) -> int:
        return self._size_bytes

    def __iter__(self) -> Iterator[bytes]:
        while block := self.read(BLOCK_BYTES):
            yield block

    def read(self, size: int = BLOCK_BYTES) -> bytes:
        """The next piece; `UploadStalledError` once the time is over."""
        # who takes a byte now and then is never silent, so no time limit of a socket ends it
        if self._monotonic() > self._ends_at:
            raise UploadStalledError(self._seconds)
        return self._stream.read(size if size > 0 else BLOCK_BYTES)
