"""The declared data of one call: prepared for head and base, shown to their runs, checked again.

The output of the base commit's preprocessing is made only when the base first runs, which it
usually does not.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from gate.comparison.studies import MAKE_AGAIN, StudyDocument
from gate.data.data_digests import data_set, with_parts_of
from gate.data.data_sets import DataPointers, DataSet, DataSets, DataStatistics, brings_data
from gate.data.declared import FetchedData, FetchSources, ListedFile, Listing
from gate.errors import DataError, GateError, RunError, SettingsError, StorageError
from gate.isolation.modes import Isolation, WriteGuard
from gate.isolation.process_request import ReadOnlyMount
from gate.pipelines.adapters import Adapters
from gate.pipelines.reader_questions import MAX_TEXT, Ask, DataStatisticsQuestion
from gate.settings.data import DataKind, DataSource, Verify
from gate.system.git.repository import Git
from gate.text.phrases import joined
from gate.text.untrusted_text import name_bytes
from gate.training.runs import Commit, Snapshot
from gate.verdict.request import GateRequest

SHOWN_UNREADABLE = 3
DVC_CONFIG = ".dvc/config"
LFS_CONFIG = ".lfsconfig"


class Pointers(Protocol):
    """Returns the pointers of an exported commit, by the labels of their entries."""

    def __call__(self, tree: Path, folder: Path, *, required: bool) -> Mapping[str, DataPointers]:
        """Without `required`, leave out entries whose files the commit does not have."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedData:
    """What the runs of one commit find: the fetched data, its listings and its digests."""

    fetched: tuple[FetchedData, ...] = ()
    listings: tuple[tuple[FetchedData, Listing], ...] = ()
    sets: DataSets = ()

    def with_one(
        self, data_set: FetchedData, described: DataSet, listing: Listing | None = None
    ) -> PreparedData:
        """Return a copy with one more data set."""
        listed = ((data_set, listing),) if listing is not None else ()
        return PreparedData(
            fetched=(*self.fetched, data_set),
            listings=(*self.listings, *listed),
            sets=tuple(sorted((*self.sets, described), key=lambda prepared: prepared.name)),
        )


class DataPreparation:
    """Prepares the declared data of one call; data that two commits share is listed once."""

    def __init__(
        self,
        request: GateRequest,
        adapters: Adapters,
        isolation: Isolation,
        pointers: Pointers,
        ask: Ask,
        recorded: DataSets,
    ) -> None:
        """Touch no data yet; `recorded` is the data of the entry that may judge."""
        self.store = adapters.data(fetch_sources(request, adapters.git))
        self._request = request
        self._adapters = adapters
        self._isolation = isolation
        self._pointers = pointers
        self._ask = ask
        self._recorded = recorded
        # by source and depth of reading: head and base usually declare the same data, and reading
        # is slow
        self._known: dict[tuple[Path, Verify], tuple[Listing, tuple[DataStatistics, ...]]] = {}

    def of_commit(self, snapshot: Snapshot, folder: Path, *, required: bool) -> PreparedData:
        """Prepare all data that the settings declare, with the pointers of this commit.

        `folder` takes the files that the reader parses. Raises `DataError`, with the name of the
        entry, for data that is unavailable or must not be used. Without `required`, as for a base
        commit that may be older, an entry that the commit does not know is left out.
        """
        settings = self._request.settings
        if not settings.data:
            return PreparedData()
        pointers = self._pointers(snapshot.tree, folder, required=required)
        prepared = PreparedData()
        for source in settings.data:
            for fetched in self.store.fetch(source, pointers.get(source.label, ())):
                placed = self._placed(source, fetched, snapshot)
                # checked for each data set before it is listed, since listing may read all of its
                # bytes
                refuse_overlap(prepared.fetched, placed, f"data: {placed.name}")
                prepared = self._with(prepared, placed, source.verify, folder)
        return prepared

    def _placed(self, source: DataSource, fetched: FetchedData, snapshot: Snapshot) -> FetchedData:
        """Return the data placed at `at`; raise `DataError` if the commit has that path."""
        if source.at is None:
            return fetched
        place = self._request.repository_path(source.at)
        target = snapshot.tree / place
        try:
            # a link of the commit could lead the mount to a place outside of the tree
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
        # without a source each run gets copies of single files, as for Git LFS
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
            # statistics describe one file; of several copies they would not say which
            (copied,) = fetched.copies
            numbers = self.statistics(copied.source, copied.place, folder)
            described = described.model_copy(update={"statistics": numbers})
        return prepared.with_one(fetched, described)

    def as_recorded(self, described: DataSet, listing: Listing) -> DataSet:
        """Divide the data set into the parts of the entry, so that a change moves few of them."""
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
        """Return the confined reader's statistics, or none if it fails: no outcome needs them."""
        files, shown = self._adapters.files, folder / "data" / source.name
        files.fresh_folder(shown.parent)
        mounts: tuple[ReadOnlyMount, ...] = ()
        # only a mount namespace can show the data at another path
        if self._isolation.guard is WriteGuard.MOUNT_NAMESPACE:
            # the reader's account may not be able to pass the folders above the data, so mount it
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
        """Raise `DataError` for data that the training's account cannot read.

        Otherwise the training would fail with a less helpful message of its own.
        """
        if not self._isolation.own_accounts or fetched.source is None:
            return
        if listing.unreadable:
            names = ", ".join(listing.unreadable[:SHOWN_UNREADABLE])
            raise DataError(
                f"{fetched.name}: the training's account may not read {names}",
                hint=f"Let every account read it: chmod -R o+rX {fetched.source}",
            )
        # a mount makes the data visible even below a folder that the account may not enter
        if self._isolation.shows_mounts:
            return
        closed = self.store.closed_folder(fetched.source)
        if closed:
            raise DataError(
                f"{fetched.name}: the training's account may not pass {closed}",
                hint=f"chmod o+x {closed}, or give the gate CAP_SYS_ADMIN, so that it can show the "
                "data at another path.",
            )


def refuse_study_of_other_data(study: StudyDocument | None, declared: DataSets) -> None:
    """Raise `SettingsError` for a study that was measured on other content of the declared data.

    What preprocessing makes of it is not known before it has run.
    """
    if study is None:
        return
    measured = {digest.name: digest.sha256 for digest in study.provenance.data}
    moved = [known.name for known in declared if measured.get(known.name) != known.sha256]
    if moved:
        raise SettingsError(
            f"--study: it was measured on other content of the declared data {joined(moved)}",
            hint=MAKE_AGAIN,
        )


def listing_of_copies(data_set: FetchedData) -> Listing:
    """Return the listing of files that each run gets a copy of, from their pointers."""
    files = (
        ListedFile(copied.place, copied.size_bytes, copied.sha256, (0, 0, 0, 0))
        for copied in data_set.copies
    )
    return Listing(
        files=tuple(sorted(files, key=lambda file: name_bytes(file.name))), verify=Verify.FULL
    )


def refuse_overlap(others: tuple[FetchedData, ...], made: FetchedData, shown: str) -> None:
    """Raise `DataError` if two data sets have one path, or one is inside the other.

    A run could not have both there. `shown` names the setting that adds `made`.
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
    """Return the remotes as the commit that decides configures them (T2).

    The files are next to the settings, or in the root folder.
    """
    kinds = {source.kind for source in request.settings.data}

    def content(name: str, kind: DataKind) -> bytes:
        # each file costs a call of git, and most projects declare neither kind
        if kind not in kinds:
            return b""
        # the base commit decides where data is fetched from (T2): a remote is reached with the
        # gate's logins
        commit = request.base_commit or request.commit or git.resolve("HEAD")
        paths = dict.fromkeys((request.repository_path(name), name))
        texts = (git.read_file(commit, path) for path in paths)
        return next((text for text in texts if text is not None), b"")

    return FetchSources(
        settings=request.settings.fetch,
        dvc_config=content(DVC_CONFIG, DataKind.DVC),
        lfs_config=content(LFS_CONFIG, DataKind.LFS),
        clone_is_trusted=request.base_commit is None,
        # the output folder contains evidence of this and earlier calls, so it is no source of data
        closed=(request.out,),
    )


class DeclaredData:
    """The data that the settings declare, and the output of preprocessing that is added to it."""

    def __init__(self, preparation: DataPreparation) -> None:
        """Prepare nothing yet."""
        self._preparation = preparation
        self.store = preparation.store
        self._prepared: dict[Commit, PreparedData] = {}
        self.base_fault: GateError | None = None

    def prepare(self, snapshots: Mapping[Commit, Snapshot], folder: Path) -> None:
        """Prepare the declared data of every commit that may be trained, before any training.

        `folder` takes the files that the reader parses. Raises `DataError` for head's data only.
        """
        for which, snapshot in snapshots.items():
            try:
                self._prepared[which] = self._preparation.of_commit(
                    snapshot, folder, required=which is Commit.HEAD
                )
            except DataError as fault:
                if which is Commit.HEAD:
                    raise
                # keep the fault, as for its code: the base usually never runs
                self.base_fault = fault

    def fetched(self, which: Commit) -> tuple[FetchedData, ...]:
        """Return the data that the runs of a commit are shown."""
        return self._prepared.get(which, PreparedData()).fetched

    def add(
        self, which: Commit, output: Path, fetched: FetchedData, listing: Listing, folder: Path
    ) -> None:
        """Add the output of a commit's preprocessing as one more data set.

        Raises `DataError` if other data has that place in the tree.
        """
        refuse_overlap(self.fetched(which), fetched, "preprocess.out")
        statistics = self._preparation.statistics(output, fetched.place, folder)
        described = data_set(fetched, listing).model_copy(update={"statistics": statistics})
        described = self._preparation.as_recorded(described, listing)
        prepared = self._prepared.get(which, PreparedData())
        self._prepared[which] = prepared.with_one(fetched, described, listing)

    def sets(self, which: Commit) -> DataSets:
        """Return the data sets of a commit, sorted by name; empty if it has none or is not run."""
        return self._prepared.get(which, PreparedData()).sets

    @property
    def changed_by_head(self) -> bool:
        """Whether head names other data than its base."""
        return brings_data(self.sets(Commit.BASE), self.sets(Commit.HEAD))

    def refuse_changed(self) -> None:
        """Raise `RunError` if data differs from its listing before the first run."""
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
