"""A file on its way out: read in pieces as the network takes them, and within a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO

from gate.errors import GateError

BLOCK_BYTES = 64 * 1024


class Upload:
    """What requests sends as a stream of a known length: no part of it is kept.

    `late` is raised where the stream is asked for more once `is_late` says so.
    """

    def __init__(
        self, stream: BinaryIO, size_bytes: int, is_late: Callable[[], bool], late: GateError
    ) -> None:
        self._stream = stream
        self._size_bytes = size_bytes
        self._is_late = is_late
        self._late = late

    def __len__(self) -> int:
        return self._size_bytes

    def __iter__(self) -> Iterator[bytes]:
        while block := self.read(BLOCK_BYTES):
            yield block

    def read(self, size: int = BLOCK_BYTES) -> bytes:
        """The next piece; raises `late` once the time is over."""
        # who takes a byte now and then is never silent, so no time limit of a socket ends it
        if self._is_late():
            raise self._late
        return self._stream.read(size if size > 0 else BLOCK_BYTES)
