"""Declared data: fetched before the first training, listed, and looked at again."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from gate.data.data_sets import DataPointers
from gate.data.declared import FetchedData, Listing
from gate.settings.data import DataSource, Verify


class DataStore(Protocol):
    """Declared data: fetched before the first training, listed, and looked at again."""

    def fetch(self, source: DataSource, pointers: DataPointers) -> tuple[FetchedData, ...]:
        """Have an entry of `data` on this machine, whole and checked; several for some.

        `pointers` are those of the entry. Raises `DataError` for what is missing, wrong, too large
        or out of reach.
        """
        ...

    def close(self) -> None:
        """Let other gates remove what this one used; call it after the last run."""
        ...

    def listing(self, source: Path, verify: Verify) -> Listing:
        """Every file below a path with its digest, no link followed; `DataError` where one is."""
        ...

    def closed_folder(self, source: Path) -> Path | None:
        """The first folder on the way to a path that other accounts may not pass, or None."""
        ...

    def changed_since(self, source: Path, listing: Listing) -> str:
        """The first file that is not as it was listed, by its content; empty where none is."""
        ...
