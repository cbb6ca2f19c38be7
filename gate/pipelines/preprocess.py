"""The settings' preprocessing command: run twice before the first training, and compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from gate.comparison.data_moves import data_moves
from gate.data.data_digests import DataStore, data_set
from gate.data.data_sets import DataSet, UnrepeatedData, unrepeated_data
from gate.data.declared import CopiedFile, FetchedData, Listing
from gate.errors import RunError, StorageError
from gate.pipelines.adapters import Adapters
from gate.pipelines.reader_questions import Ask, DataDifferenceQuestion
from gate.settings.data import DataKind, PreprocessSettings, Verify
from gate.settings.gate_settings import GateSettings
from gate.training.launch import Launcher, run_folders
from gate.training.runs import Commit, PlannedRun, RunMode, Snapshot
from gate.verdict.request import GateRequest

MAX_COMMAND = 200
MAX_WHERE = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Preprocessed:
    """The output of a commit's preprocessing."""

    output: Path
    fetched: FetchedData
    listing: Listing


class Preprocessing:
    """Runs the command like a training, and copies its output out of the training's reach.

    `unrepeated` describes how the two runs of head differ, if they do.
    """

    def __init__(
        self,
        request: GateRequest,
        made: PreprocessSettings,
        adapters: Adapters,
        store: DataStore,
        ask: Ask,
        work: Path,
    ) -> None:
        """`work` is the call's folder. Nothing is touched yet."""
        self._request = request
        self._made = made
        self._adapters = adapters
        self._store = store
        self._ask = ask
        self._work = work
        self._place = request.repository_path(made.out)
        self._done: set[Commit] = set()
        self.unrepeated: UnrepeatedData | None = None

    def is_due(self, which: Commit) -> bool:
        """Decide whether the command has not run for this commit yet."""
        return which not in self._done

    def of_commit(self, which: Commit, launcher: Launcher, snapshot: Snapshot) -> Preprocessed:
        """Run the command twice for head and once for the base commit, which is not under test.

        Raises `RunError` if the command fails or writes nothing, and `DataError` for an output that
        is neither a file nor a folder.
        """
        # first, so that a failing command is not repeated for every run
        self._done.add(which)
        runs = (1, 2) if which is Commit.HEAD else (1,)
        outputs = [self._run(which, number, launcher, snapshot) for number in runs]
        listings = [self._store.listing(path, Verify.FULL) for path in outputs]
        described = [
            data_set(self._fetched(path), listing)
            for path, listing in zip(outputs, listings, strict=True)
        ]
        fetched = self._fetched(outputs[-1])
        if not launcher.isolation.shows_mounts and launcher.isolation.own_accounts:
            # a link would lead to a place that the training's account may not enter, so each run
            # gets copies
            fetched = replace(fetched, source=None, copies=self._copies(outputs[-1], listings[-1]))
        unrepeated = self._unrepeated(outputs, described)
        if unrepeated is not None:
            # every verb that trains says so, also where its own answer compares something else
            self._adapters.progress.step(unrepeated_data(unrepeated))
        self.unrepeated = self.unrepeated or unrepeated
        return Preprocessed(output=outputs[-1], fetched=fetched, listing=listings[-1])

    def _run(self, which: Commit, number: int, launcher: Launcher, snapshot: Snapshot) -> Path:
        files, made = self._adapters.files, self._made
        folders = run_folders(self._work / "run")
        label = f"preprocess-{number}" if which is Commit.HEAD else f"base-preprocess-{number}"
        planned = PlannedRun(
            label=label,
            mode=RunMode.STRICT,
            commit=which,
            observe=False,
            preprocesses=True,
            command=made.command,
        )
        # the command has its own time limit and starts in the settings' folder, not in
        # train.workdir
        own = replace(launcher, settings=_with_its_own_limits(launcher.settings, made))
        at_settings = replace(snapshot, workdir=self._request.repository_path("."))
        files.fresh_folder(self._work / "run")
        with self._adapters.progress.running(f"{label}: {' '.join(made.command)[:MAX_COMMAND]}"):
            own.run(planned, at_settings, folders)
        # before the gate reads a file: after this no process can change it
        self._adapters.clean_up(launcher.isolation)
        name = Path(made.out).name
        return self._taken(folders.tree, self._work / "preprocessed" / label / name, label)

    def _taken(self, tree: Path, target: Path, label: str) -> Path:
        files, source = self._adapters.files, tree / self._place
        try:
            # T3: the command may have left a link to a file that only the gate can read
            files.refuse_links(source, below=tree)
            if not files.exists(source):
                raise RunError(
                    f"run {label}: the command wrote nothing at {self._place}",
                    hint="preprocess.out must name the file or folder that it writes, relative to "
                    "the settings file.",
                )
            files.fresh_folder(target.parent)
            if files.is_folder(source):
                files.copy_tree(source, target, max_bytes=self._made.max_bytes)
            else:
                files.copy_file(source, target, max_bytes=self._made.max_bytes)
        except StorageError as fault:
            raise RunError(
                f"run {label}: what it wrote cannot be taken over: {fault.message}", hint=fault.hint
            ) from fault
        files.let_read(target)
        return target

    def _fetched(self, path: Path) -> FetchedData:
        return FetchedData(
            name=self._made.out,
            kind=DataKind.PREPROCESS,
            origin=" ".join(self._made.command)[:MAX_COMMAND],
            place=self._place,
            source=path,
        )

    def _copies(self, output: Path, listing: Listing) -> tuple[CopiedFile, ...]:
        return tuple(
            CopiedFile(
                source=output / file.name if file.name else output,
                place=f"{self._place}/{file.name}" if file.name else self._place,
                sha256=file.sha256,
                size_bytes=file.size_bytes,
            )
            for file in listing.files
        )

    def _unrepeated(self, outputs: list[Path], described: list[DataSet]) -> UnrepeatedData | None:
        moves = data_moves((described[0],), (described[-1],))
        if not moves:
            return None
        return UnrepeatedData(
            command=" ".join(self._made.command)[:MAX_COMMAND],
            move=moves[0],
            where=self._where(outputs, moves[0].first)[:MAX_WHERE],
        )

    def _where(self, outputs: list[Path], first: str) -> str:
        """Return where the first differing file first differs; empty if that is unknown."""
        files = self._adapters.files
        taken = run_folders(self._work / "run").taken
        files.fresh_folder(taken)
        copies = []
        for number, output in enumerate(outputs):
            source = output / first if first else output
            # copied to a folder that the reader can open; the name keeps its suffix, which shows
            # the format
            copy = taken / str(number) / (source.name or "file")
            files.fresh_folder(copy.parent)
            try:
                files.copy_file(source, copy, max_bytes=self._made.max_bytes)
            except StorageError:
                return ""
            copies.append(copy)
        return self._ask(DataDifferenceQuestion(first=copies[0], second=copies[1]))


def _with_its_own_limits(settings: GateSettings, made: PreprocessSettings) -> GateSettings:
    train = settings.train.model_copy(update={"timeout_seconds": made.timeout_seconds})
    return settings.model_copy(update={"train": train})
