"""Declared data on this machine: the port `DataStore`."""

from __future__ import annotations

import stat
from pathlib import Path

from gate.data.data_sets import DataPointers
from gate.data.declared import FetchedData, Listing
from gate.data.digest_cache import DigestCache
from gate.data.fetch import Fetcher
from gate.data.listing import first_change, take_listing
from gate.settings.data import DataSource, Verify


class LocalData:
    """Fetches by `fetcher`, beside whose data the digests of known files are kept."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._digests = DigestCache(fetcher.cache_folder, prepare=fetcher.prepare_cache)

    def close(self) -> None:
        """As the port `DataStore` says."""
        self._fetcher.close()

    def fetch(self, source: DataSource, pointers: DataPointers) -> tuple[FetchedData, ...]:
        """As the port `DataStore` says."""
        return self._fetcher.fetch(source, pointers)

    def listing(self, source: Path, verify: Verify) -> Listing:
        """As the port `DataStore` says."""
        return take_listing(source, verify, self._digests)

    def closed_folder(self, source: Path) -> Path | None:
        """As the port `DataStore` says; only permission bits are looked at."""
        way = (folder for folder in source.parents if not folder.stat().st_mode & stat.S_IXOTH)
        return next(way, None)

    def changed_since(self, source: Path, listing: Listing) -> str:
        """As the port `DataStore` says."""
        return first_change(source, listing)
