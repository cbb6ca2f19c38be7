"""What a place that keeps lines of verdicts has to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date
from typing import Protocol


class HistoryStore(Protocol):
    """Files of lines by their names; every failure is a `GateError`."""

    @property
    def shown(self) -> str:
        """What the store is called in a sentence."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Keep a file; one of this name is the same one."""
        ...

    def names(self, since: date) -> Iterator[str]:
        """The names from a day on, in their order."""
        ...

    def read(self, name: str) -> bytes:
        """The content of a file."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Remove files whose lines are in another one, or past their time; else `SettingsError`."""
        ...
