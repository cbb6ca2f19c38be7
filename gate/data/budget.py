"""How much of a data set is read for its statistics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

GIB: Final = 1024**3


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """In bytes after decompression and in seconds, for all files of a data set together.

    Text is slow to read, so it has a limit of its own. The limits of bytes come first on any
    machine, so that the same files give the same numbers.
    """

    array_bytes: int = 4 * GIB
    text_bytes: int = 64 * 1024**2
    wall_seconds: float = 120.0
    max_names: int = 2_000_000


class Budget:
    """What is left of the limits; `seconds` is a clock that only goes forward."""

    def __init__(self, limits: Limits, seconds: Callable[[], float]) -> None:
        self.limits = limits
        self._seconds = seconds
        self._end = seconds() + limits.wall_seconds
        self._array_bytes = limits.array_bytes
        self._text_bytes = limits.text_bytes

    def in_time(self) -> bool:
        """Whether there is time left."""
        return self._seconds() < self._end

    def array_bytes(self, count: int) -> bool:
        """Whether so many more bytes of arrays may be read."""
        self._array_bytes -= count
        return self._array_bytes >= 0 and self.in_time()

    def text_bytes(self, count: int) -> bool:
        """Whether so many more bytes of text may be read."""
        self._text_bytes -= count
        return self._text_bytes >= 0 and self.in_time()
