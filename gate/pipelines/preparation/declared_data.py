"""The declared data of one call: prepared for head and base, handed to their runs, looked at again.

What the base commit's preprocessing writes is made when the base is first run: most often it never
is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gate.errors import DataError, GateError, RunError
from gate.evidence.fresh_process import FreshReader
from gate.execution.launch import Launcher
from gate.pipelines.adapters import Adapters
from gate.pipelines.preparation.data import DataPreparation, PreparedData
from gate.pipelines.preparation.preprocess import Preprocessing
from gate.records.observed.data.sets import DataSets, UnrepeatedData, brings_data
from gate.records.request import GateRequest
from gate.records.runs import Commit, Isolation, Snapshot


class DeclaredData:
    """What `data` and `preprocess` of the settings come to."""

    def __init__(
        self,
        request: GateRequest,
        adapters: Adapters,
        isolation: Isolation,
        reader: FreshReader,
        work: Path,
        recorded: DataSets,
    ) -> None:
        """`recorded` is the data of the entry that may judge, `work` the call's own folder."""
        self._store = adapters.data
        self._preparation = DataPreparation(request, adapters, isolation, reader, recorded)
        made = request.settings.preprocess
        self._preprocessing = (
            Preprocessing(request, made, adapters, reader, work) if made is not None else None
        )
        self._prepared: dict[Commit, PreparedData] = {}
        self._preprocessed: set[Commit] = set()
        self.base_fault: GateError | None = None
        self.unrepeated: UnrepeatedData | None = None

    def prepare(self, snapshots: Mapping[Commit, Snapshot], folder: Path) -> None:
        """All that the settings name, of every commit that may be trained, before any training.

        `folder` takes what the confined process reads. Raises `DataError` for head's.
        """
        for which, snapshot in snapshots.items():
            try:
                self._prepared[which] = self._preparation.of_commit(snapshot, folder)
            except DataError as fault:
                if which is Commit.HEAD:
                    raise
                # as with its code: most often the base is never run
                self.base_fault = fault

    def launcher_of(self, which: Commit, launcher: Launcher, snapshot: Snapshot) -> Launcher:
        """A launcher that shows a commit's runs its data, preprocessed where the settings ask."""
        found = replace(launcher, data=self._prepared.get(which, PreparedData()).fetched)
        if self._preprocessing is None or which in self._preprocessed:
            return found
        made = self._preprocessing.of_commit(which, found, snapshot)
        self._preprocessed.add(which)
        described = self._preparation.as_recorded(made.described, made.listing)
        self._prepared[which] = self._prepared.get(which, PreparedData()).with_one(
            made.fetched, described, made.listing
        )
        if which is Commit.HEAD:
            self.unrepeated = made.unrepeated
        return replace(launcher, data=self._prepared[which].fetched)

    def sets(self, which: Commit) -> DataSets:
        """The data sets of a commit, sorted by name; none where it has none, or is not run."""
        return self._prepared.get(which, PreparedData()).sets

    @property
    def brought(self) -> bool:
        """Whether the change names other data than its base."""
        return brings_data(self.sets(Commit.BASE), self.sets(Commit.HEAD))

    def refuse_changed(self) -> None:
        """Raise `RunError` where data is no longer as it was listed before the first run."""
        for each in self._prepared.values():
            for one, listing in each.listings:
                if one.source is None:
                    continue
                name = self._store.changed_since(one.source, listing)
                if name:
                    raise RunError(
                        f"the data set {one.name} changed while the gate ran: {name}",
                        hint="Nothing may write to declared data while trainings read it: a job "
                        "that makes it has to end first. If the training wrote there, let the "
                        "gate isolate it (isolation.minimum: uid).",
                    )
