"""Declared data of a commit: fetched, listed and described, before the first training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gate.codec.data_digests import data_set, with_parts_of
from gate.codec.file_names import name_bytes
from gate.errors import DataError, GateError
from gate.evidence.fresh_process import FreshReader
from gate.pipelines.adapters import Adapters
from gate.pipelines.preparation.pointers import pointers_of
from gate.records.observed.data.listed import FetchedData, ListedFile, Listing
from gate.records.observed.data.sets import DataSet, DataSets, DataStatistics
from gate.records.processes import ReadOnlyMount
from gate.records.reading import ReadingRequest, ReadingTask
from gate.records.request import GateRequest
from gate.records.runs import Isolation, Snapshot, WriteGuard
from gate.records.sections.data import Verify

SHOWN_UNREADABLE = 3
DVC_CONFIG = ".dvc/config"


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedData:
    """What the runs of one commit find: where it lies, what was listed of it, and its digests."""

    fetched: tuple[FetchedData, ...] = ()
    listings: tuple[tuple[FetchedData, Listing], ...] = ()
    sets: DataSets = ()

    def with_one(
        self, one: FetchedData, described: DataSet, listing: Listing | None = None
    ) -> PreparedData:
        """The same and one more data set."""
        listed = ((one, listing),) if listing is not None else ()
        return PreparedData(
            fetched=(*self.fetched, one),
            listings=(*self.listings, *listed),
            sets=tuple(sorted((*self.sets, described), key=lambda each: each.name)),
        )


class DataPreparation:
    """Prepares the declared data of one call; what two commits share is listed once."""

    def __init__(
        self,
        request: GateRequest,
        adapters: Adapters,
        isolation: Isolation,
        reader: FreshReader,
        recorded: DataSets,
    ) -> None:
        """Nothing is touched yet; `recorded` is the data of the entry that may judge."""
        self._request = request
        self._adapters = adapters
        self._isolation = isolation
        self._reader = reader
        self._recorded = recorded
        self._known: dict[tuple[Path, Verify], tuple[Listing, tuple[DataStatistics, ...]]] = {}

    def of_commit(self, snapshot: Snapshot, folder: Path) -> PreparedData:
        """All that the settings declare, as this commit names it; `folder` takes what is read.

        Raises `DataError` for what cannot be had or must not be used, with the name of its entry.
        """
        request, adapters = self._request, self._adapters
        settings = request.settings
        if not settings.data:
            return PreparedData()
        ask = self._reader.ask
        pointers = pointers_of(request, snapshot.tree, folder, adapters.files, ask)
        prepared = PreparedData()
        for source in settings.data:
            with adapters.progress.running(f"data {source.label}"):
                for one in adapters.data.fetch(source, pointers.get(source.label, ()), self._dvc()):
                    prepared = self._with(prepared, one, source.verify, folder)
        return prepared

    def _with(
        self, prepared: PreparedData, one: FetchedData, verify: Verify, folder: Path
    ) -> PreparedData:
        if one.source is None:
            return prepared.with_one(one, data_set(one, listing_of_copies(one)))
        listing, statistics = self._listed(one.source, verify, folder)
        self._refuse_unreachable(one, listing)
        described = data_set(one, listing).model_copy(update={"statistics": statistics})
        return prepared.with_one(one, self.as_recorded(described, listing), listing)

    def as_recorded(self, described: DataSet, listing: Listing) -> DataSet:
        """The data set in the parts that it was recorded in, so that few of them move."""
        recorded = next((each for each in self._recorded if each.name == described.name), None)
        return described if recorded is None else with_parts_of(described, listing, recorded)

    def _listed(
        self, source: Path, verify: Verify, folder: Path
    ) -> tuple[Listing, tuple[DataStatistics, ...]]:
        if (source, verify) not in self._known:
            listing = self._adapters.data.listing(source, verify)
            self._known[source, verify] = listing, self._statistics(source, folder)
        return self._known[source, verify]

    def _statistics(self, source: Path, folder: Path) -> tuple[DataStatistics, ...]:
        """By the confined process; none where it cannot say, since nothing hangs on them."""
        files, shown = self._adapters.files, folder / "data" / source.name
        files.fresh_folder(shown.parent)
        mounts: tuple[ReadOnlyMount, ...] = ()
        if self._isolation.guard is WriteGuard.MOUNT_NAMESPACE:
            # the account may not have the way to where it lies
            mounts = (ReadOnlyMount(source=source, target=shown),)
            if files.is_folder(source):
                files.fresh_folder(shown)
            else:
                files.write_new(shown, b"")
        path = shown if mounts else source
        request = ReadingRequest(task=ReadingTask.DATA_STATISTICS, out=str(path))
        try:
            return self._reader.ask(request, folder, mounts).statistics
        except GateError:
            return ()

    def _refuse_unreachable(self, one: FetchedData, listing: Listing) -> None:
        """What another account cannot read would fail in the training, with words of its own."""
        if not self._isolation.own_accounts or one.source is None:
            return
        if listing.unreadable:
            names = ", ".join(map(ascii, listing.unreadable[:SHOWN_UNREADABLE]))
            raise DataError(
                f"{one.name}: the training's account may not read {names}",
                hint=f"Let every account read it: chmod -R o+rX {one.source}",
            )
        if self._isolation.shows_mounts:
            return
        closed = self._adapters.data.closed_folder(one.source)
        if closed:
            raise DataError(
                f"{one.name}: the training's account may not pass {closed}",
                hint=f"chmod o+x {closed}, or give the gate CAP_SYS_ADMIN, so that it can show the "
                "data at another path.",
            )

    def _dvc(self) -> bytes:
        """`.dvc/config` of the commit that decides: next to the settings, or at the root."""
        request, git = self._request, self._adapters.git
        commit = request.base_commit or request.commit or "HEAD"
        for path in dict.fromkeys((request.repository_path(DVC_CONFIG), DVC_CONFIG)):
            found = git.read_file(commit, path)
            if found is not None:
                return found
        return b""


def listing_of_copies(one: FetchedData) -> Listing:
    """Files that each run gets a copy of, as their pointers name them."""
    files = (
        ListedFile(copied.place, copied.size_bytes, copied.sha256, (0, 0, 0, 0))
        for copied in one.copies
    )
    return Listing(
        files=tuple(sorted(files, key=lambda file: name_bytes(file.name))), verify=Verify.FULL
    )
