"""The declared data of one call: prepared for head and base, handed to their runs, looked at again.

What the base commit's preprocessing writes is made when the base is first run: most often it never
is.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from gate.data.data_digests import data_set, with_parts_of
from gate.data.data_sets import DataPointers, DataSet, DataSets, DataStatistics, brings_data
from gate.data.declared import FetchedData, FetchSources, ListedFile, Listing
from gate.errors import DataError, GateError, RunError, StorageError
from gate.isolation.modes import Isolation, WriteGuard
from gate.isolation.process_request import ReadOnlyMount
from gate.pipelines.adapters import Adapters
from gate.pipelines.reading import MAX_TEXT, Ask, DataStatisticsQuestion
from gate.settings.data import DataKind, DataSource, Verify
from gate.system.git.repository import Git
from gate.text.untrusted_text import name_bytes
from gate.training.runs import Commit, Snapshot
from gate.verdict.request import GateRequest

SHOWN_UNREADABLE = 3
DVC_CONFIG = ".dvc/config"
LFS_CONFIG = ".lfsconfig"


class Pointers(Protocol):
    """The pointers of an exported commit by the labels of their entries."""

    def __call__(self, tree: Path, folder: Path, *, required: bool) -> Mapping[str, DataPointers]:
        """Without `required`, what the commit does not have is left out."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedData:
    """What the runs of one commit find: where it lies, what was listed of it, and its digests."""

    fetched: tuple[FetchedData, ...] = ()
    listings: tuple[tuple[FetchedData, Listing], ...] = ()
    sets: DataSets = ()

    def with_one(
        self, data_set: FetchedData, described: DataSet, listing: Listing | None = None
    ) -> PreparedData:
        """The same and one more data set."""
        listed = ((data_set, listing),) if listing is not None else ()
        return PreparedData(
            fetched=(*self.fetched, data_set),
            listings=(*self.listings, *listed),
            sets=tuple(sorted((*self.sets, described), key=lambda prepared: prepared.name)),
        )


class DataPreparation:
    """Prepares the declared data of one call; what two commits share is listed once."""

    def __init__(
        self,
        request: GateRequest,
        adapters: Adapters,
        isolation: Isolation,
        pointers: Pointers,
        ask: Ask,
        recorded: DataSets,
    ) -> None:
        """Nothing is touched yet; `recorded` is the data of the entry that may judge."""
        self.store = adapters.data(fetch_sources(request, adapters.git))
        self._request = request
        self._adapters = adapters
        self._isolation = isolation
        self._pointers = pointers
        self._ask = ask
        self._recorded = recorded
        self._known: dict[tuple[Path, Verify], tuple[Listing, tuple[DataStatistics, ...]]] = {}

    def of_commit(self, snapshot: Snapshot, folder: Path, *, required: bool) -> PreparedData:
        """All that the settings declare, as this commit names it; `folder` takes what is read.

        Raises `DataError` for what cannot be had or must not be used, with the name of its entry.
        Without `required`, as for a base commit that may be older, an entry that the commit knows
        nothing of is left out.
        """
        settings = self._request.settings
        if not settings.data:
            return PreparedData()
        pointers = self._pointers(snapshot.tree, folder, required=required)
        prepared = PreparedData()
        for source in settings.data:
            for fetched in self.store.fetch(source, pointers.get(source.label, ())):
                placed = self._placed(source, fetched, snapshot)
                refuse_overlap(prepared.fetched, placed, f"data: {placed.name}")
                prepared = self._with(prepared, placed, source.verify, folder)
        return prepared

    def _placed(self, source: DataSource, fetched: FetchedData, snapshot: Snapshot) -> FetchedData:
        """With the place that `at` names, where the commit must have nothing."""
        if source.at is None:
            return fetched
        place = self._request.repository_path(source.at)
        target = snapshot.tree / place
        try:
            self._adapters.files.refuse_links(target, below=snapshot.tree)
            taken = self._adapters.files.exists(target)
        except StorageError as fault:
            raise DataError(
                f"data: {fetched.name}: at {place}: {fault.message}",
                hint="Declared data is not put behind a link of the commit, or inside a file.",
            ) from fault
        if taken:
            raise DataError(
                f"data: {fetched.name}: the commit itself has {place}",
                hint="Declared data replaces nothing that is committed. Choose another `at`, or "
                f"remove that from the commit: git rm -r --cached {shlex.quote(place)}",
            )
        return replace(fetched, place=place)

    def _with(
        self, prepared: PreparedData, fetched: FetchedData, verify: Verify, folder: Path
    ) -> PreparedData:
        if fetched.source is None:
            return self._with_copies(prepared, fetched, folder)
        listing, statistics = self._listed(fetched, fetched.source, verify, folder)
        self._refuse_unreachable(fetched, listing)
        described = data_set(fetched, listing).model_copy(update={"statistics": statistics})
        return prepared.with_one(fetched, self.as_recorded(described, listing), listing)

    def _with_copies(
        self, prepared: PreparedData, fetched: FetchedData, folder: Path
    ) -> PreparedData:
        listing = listing_of_copies(fetched)
        described = self.as_recorded(data_set(fetched, listing), listing)
        if len(fetched.copies) == 1:
            # of several the numbers would be those of one, and nobody knew of which
            (copied,) = fetched.copies
            numbers = self.statistics(copied.source, copied.place, folder)
            described = described.model_copy(update={"statistics": numbers})
        return prepared.with_one(fetched, described)

    def as_recorded(self, described: DataSet, listing: Listing) -> DataSet:
        """The data set in the parts that it was recorded in, so that few of them move."""
        recorded = next((known for known in self._recorded if known.name == described.name), None)
        return described if recorded is None else with_parts_of(described, listing, recorded)

    def _listed(
        self, fetched: FetchedData, source: Path, verify: Verify, folder: Path
    ) -> tuple[Listing, tuple[DataStatistics, ...]]:
        if (source, verify) not in self._known:
            with self._adapters.progress.running(f"reading {fetched.name} ({verify.value})"):
                listing = self.store.listing(source, verify)
                name = (
                    source.name if fetched.kind is DataKind.PATH else fetched.place or fetched.name
                )
                self._known[source, verify] = listing, self.statistics(source, name, folder)
        return self._known[source, verify]

    def statistics(self, source: Path, name: str, folder: Path) -> tuple[DataStatistics, ...]:
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
        question = DataStatisticsQuestion(path=path, shown=Path(name).name[:MAX_TEXT])
        try:
            return self._ask(question, mounts)
        except GateError:
            return ()

    def _refuse_unreachable(self, fetched: FetchedData, listing: Listing) -> None:
        """What another account cannot read would fail in the training, with words of its own."""
        if not self._isolation.own_accounts or fetched.source is None:
            return
        if listing.unreadable:
            names = ", ".join(listing.unreadable[:SHOWN_UNREADABLE])
            raise DataError(
                f"{fetched.name}: the training's account may not read {names}",
                hint=f"Let every account read it: chmod -R o+rX {fetched.source}",
            )
        if self._isolation.shows_mounts:
            return
        closed = self.store.closed_folder(fetched.source)
        if closed:
            raise DataError(
                f"{fetched.name}: the training's account may not pass {closed}",
                hint=f"chmod o+x {closed}, or give the gate CAP_SYS_ADMIN, so that it can show the "
                "data at another path.",
            )


def listing_of_copies(data_set: FetchedData) -> Listing:
    """Files that each run gets a copy of, as their pointers name them."""
    files = (
        ListedFile(copied.place, copied.size_bytes, copied.sha256, (0, 0, 0, 0))
        for copied in data_set.copies
    )
    return Listing(
        files=tuple(sorted(files, key=lambda file: name_bytes(file.name))), verify=Verify.FULL
    )


def refuse_overlap(others: tuple[FetchedData, ...], made: FetchedData, shown: str) -> None:
    """Two things at one path, or one inside the other: which of them would a run find?

    `shown` is what brings `made`. Raises `DataError`.
    """
    for other in others:
        for place in (other.place, *(copied.place for copied in other.copies)):
            both = Path(place), Path(made.place)
            if not place or not made.place:
                continue
            if any(a.is_relative_to(b) for a, b in (both, both[::-1])):
                raise DataError(
                    f"{shown} and data: {other.name} both have the place {place}",
                    hint="Give each of them a place of its own.",
                )


def fetch_sources(request: GateRequest, git: Git) -> FetchSources:
    """What the commit that decides says of remotes: next to the settings, or at the root."""
    kinds = {source.kind for source in request.settings.data}

    def content(name: str, kind: DataKind) -> bytes:
        # each is a call of git, and most projects declare neither
        if kind not in kinds:
            return b""
        commit = request.base_commit or request.commit or git.resolve("HEAD")
        paths = dict.fromkeys((request.repository_path(name), name))
        texts = (git.read_file(commit, path) for path in paths)
        return next((text for text in texts if text is not None), b"")

    return FetchSources(
        settings=request.settings.fetch,
        dvc_config=content(DVC_CONFIG, DataKind.DVC),
        lfs_config=content(LFS_CONFIG, DataKind.LFS),
        clone_is_trusted=request.base_commit is None,
        # of this call and an earlier one: another commit's evidence
        closed=(request.out,),
    )


class DeclaredData:
    """What the settings declare, and what preprocessing adds to it."""

    def __init__(self, preparation: DataPreparation) -> None:
        """Nothing is prepared yet."""
        self._preparation = preparation
        self.store = preparation.store
        self._prepared: dict[Commit, PreparedData] = {}
        self.base_fault: GateError | None = None

    def prepare(self, snapshots: Mapping[Commit, Snapshot], folder: Path) -> None:
        """All that the settings name, of every commit that may be trained, before any training.

        `folder` takes what the confined process reads. Raises `DataError` for head's.
        """
        for which, snapshot in snapshots.items():
            try:
                self._prepared[which] = self._preparation.of_commit(
                    snapshot, folder, required=which is Commit.HEAD
                )
            except DataError as fault:
                if which is Commit.HEAD:
                    raise
                # as with its code: most often the base is never run
                self.base_fault = fault

    def fetched(self, which: Commit) -> tuple[FetchedData, ...]:
        """What the runs of a commit are shown."""
        return self._prepared.get(which, PreparedData()).fetched

    def add(
        self, which: Commit, output: Path, fetched: FetchedData, listing: Listing, folder: Path
    ) -> None:
        """One more data set of a commit: what its preprocessing wrote at `output`.

        Raises `DataError` where other data has that place in the tree.
        """
        refuse_overlap(self.fetched(which), fetched, "preprocess.out")
        statistics = self._preparation.statistics(output, fetched.place, folder)
        described = data_set(fetched, listing).model_copy(update={"statistics": statistics})
        described = self._preparation.as_recorded(described, listing)
        prepared = self._prepared.get(which, PreparedData())
        self._prepared[which] = prepared.with_one(fetched, described, listing)

    def sets(self, which: Commit) -> DataSets:
        """The data sets of a commit, sorted by name; none where it has none, or is not run."""
        return self._prepared.get(which, PreparedData()).sets

    @property
    def changed_by_head(self) -> bool:
        """Whether the change names other data than its base."""
        return brings_data(self.sets(Commit.BASE), self.sets(Commit.HEAD))

    def refuse_changed(self) -> None:
        """Raise `RunError` where data is no longer as it was listed before the first run."""
        for fetched in self._prepared.values():
            for placed, listing in fetched.listings:
                if placed.source is None:
                    continue
                name = self.store.changed_since(placed.source, listing)
                if name:
                    raise RunError(
                        f"the data set {placed.name} changed while the gate ran: {name}",
                        hint="Nothing may write to declared data while trainings read it: a job "
                        "that makes it has to end first. If the training wrote there, let the "
                        "gate isolate it (isolation.minimum: uid).",
                    )
