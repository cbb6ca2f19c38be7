"""The protocol of a store for lines of verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date
from typing import Protocol


class HistoryStore(Protocol):
    """A store of files with lines, by name; every failure is a `GateError`."""

    @property
    def shown(self) -> str:
        """The store's name in a sentence."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Store a file; a file that has this name already has the same content."""
        ...

    def names(self, since: date) -> Iterator[str]:
        """Yield the names from a day on, in order."""
        ...

    def read(self, name: str) -> bytes:
        """Return a file's content."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Remove files that are joined into others or expired; `SettingsError` if impossible."""
        ...
