"""Declared data on this machine: the port `DataStore`."""

from __future__ import annotations

from pathlib import Path

from gate.adapters.data.fetching.fetch import Fetcher
from gate.adapters.data.listing import first_change, take_listing
from gate.records.observed.data.listed import FetchedData, Listing
from gate.records.observed.data.sets import DataPointers
from gate.records.sections.data import DataSource, Verify


class LocalData:
    """Fetches by `fetcher`; `digests` is the folder of digests that are kept between calls."""

    def __init__(self, fetcher: Fetcher, digests: Path | None = None) -> None:
        self._fetcher = fetcher
        self._digests = digests

    def close(self) -> None:
        """Let other gates remove what this one used."""
        self._fetcher.close()

    def fetch(
        self, source: DataSource, pointers: DataPointers, dvc_config: bytes
    ) -> tuple[FetchedData, ...]:
        """As the port `DataStore` says."""
        return self._fetcher.fetch(source, pointers, dvc_config)

    def listing(self, source: Path, verify: Verify) -> Listing:
        """As the port `DataStore` says."""
        return take_listing(source, verify, self._digests)

    def changed_since(self, source: Path, listing: Listing) -> str:
        """As the port `DataStore` says."""
        return first_change(source, listing)
