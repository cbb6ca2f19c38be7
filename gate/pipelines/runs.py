"""The runs of one call: snapshots exported once, folders emptied for each run, evidence kept."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

from gate.errors import EvidenceError, RepositoryError, RunError
from gate.evidence import capture
from gate.evidence.capture import OUTPUT_FILE, CapturedFile, KeptFiles
from gate.evidence.environment import leave_out_packages
from gate.evidence.folder import evidence_documents
from gate.evidence.fresh_process import FreshReader
from gate.evidence.processes.operator_audit import explained
from gate.evidence.saved_files import SAVED_COPY, SavedCopy, capture_saved
from gate.evidence.usable import refuse_unusable
from gate.execution.call_time import CallTime
from gate.execution.launch import Launcher, run_folders
from gate.execution.missing_file import NotCommitted, with_missing_file
from gate.execution.training_probe import probe_training
from gate.pipelines.adapters import Adapters
from gate.pipelines.preparation.code_files import keep_code
from gate.pipelines.preparation.declared_data import DataPreparation, DeclaredData
from gate.pipelines.preparation.environments import TrainingEnvironment, training_environments
from gate.pipelines.preparation.gpu_search import GpuSearch
from gate.pipelines.preparation.locks import locks_of_commits
from gate.pipelines.preparation.output_folder import prepare_out
from gate.pipelines.preparation.pointers import pointers_of_commit
from gate.pipelines.preparation.preprocess import Preprocessing
from gate.pipelines.preparation.snapshots import check_snapshots, export_all
from gate.records.measured.timeline import OwnWork
from gate.records.measurement import ReductionSpread, WeightDistance
from gate.records.observed.data.sets import DataSets, UnrepeatedData
from gate.records.observed.evidence import (
    DivergedStates,
    EvidenceSet,
    KeptFile,
    RunEvidence,
    SavedFiles,
    SeededRun,
)
from gate.records.observed.operator_audit import Refusal
from gate.records.observed.trace import Traces
from gate.records.observed.traced import TraceFinding
from gate.records.observed.trials.tried import TriedSettings
from gate.records.reading import ReadingRequest, ReadingTask
from gate.records.request import GateRequest
from gate.records.runs import (
    FIRST_STRICT,
    SECOND_STRICT,
    Commit,
    PlannedRun,
    RunFolders,
    RunRecord,
    Snapshot,
)
from gate.settings.load import settings_digest, training_digest

NO_ANSWER_HINT = "This is a bug in repro-gate; please report it."


class Session:
    """The runs of one call: snapshots exported once, folders emptied for each run."""

    def __init__(
        self,
        request: GateRequest,
        adapters: Adapters,
        *,
        runs_base: bool = False,
        recorded: DataSets = (),
        call: CallTime | None = None,
    ) -> None:
        """Nothing is touched before `with` is entered; `runs_base`: whatever the policy says.

        `recorded` is the declared data of the entry that may judge; `call` keeps the time.
        """
        self.request = request
        self._call = call or CallTime(adapters.clock)
        self._runs_base = runs_base or request.settings.policy.run_base_on_drift
        self.adapters = adapters
        self._work = request.out / "work"
        self._snapshots: dict[Commit, Snapshot] = {}
        self._no_base: RepositoryError | None = None
        self._recorded = recorded
        self._preprocessing: Preprocessing | None = None
        self._unrepeated: UnrepeatedData | None = None
        self._kept = KeptFiles(request.out / "evidence", adapters.files)
        self._first: RunEvidence | None = None
        self._saved: SavedFiles | None = None
        self._apart: DivergedStates | None = None
        self._gpu = GpuSearch(request.settings, adapters, self._work / "run", probe_training)
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        """Export the code and decide how the training is isolated."""
        with ExitStack() as ends, self._call.own(OwnWork.PREPARING):
            self._prepare(ends)
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave no process and no copy of the code behind, however the body ended."""
        self._ends.close()

    def _prepare(self, ends: ExitStack) -> None:
        adapters = self.adapters
        prepare_out(self.request.out, adapters.files)
        ends.callback(adapters.release)  # last of all: the account owns files in the work folder
        # registered before the folder is made: callbacks
        # run backwards, so this one after the clean-up
        ends.callback(adapters.files.remove_tree, self._work)
        adapters.files.fresh_folder(self._work)
        self._snapshots, self._no_base = export_all(
            self.request, adapters, self._work, runs_base=self._runs_base
        )
        # asked now: git does not look at the clone once a training has run
        self._left_out = NotCommitted(
            ignored=adapters.git.ignored(), untracked=adapters.git.untracked()
        )
        environments = training_environments(
            self.request, adapters.isolate, self._work, adapters.host, adapters.base_path
        )
        self.isolation = environments[Commit.HEAD].isolation
        adapters.progress.step(self.isolation.announced)
        if self.isolation.needs_restricted_paths:
            ends.enter_context(adapters.closed((self.request.out,), self._work / "run"))
        for environment in environments.values():
            ends.callback(adapters.clean_up, environment.isolation)
            # what an earlier call under this account left would be there for the first run to find
            adapters.clean_up(environment.isolation)
        self._launchers = {
            which: self._launcher_in(environment) for which, environment in environments.items()
        }
        self._reader = FreshReader(
            adapters.files, adapters.processes, adapters.progress, self.isolation.credentials
        )
        self._prepare_inputs(ends)

    def _prepare_inputs(self, ends: ExitStack) -> None:
        """Lock files and declared data of every commit that may be trained."""
        adapters = self.adapters
        trees = {which: snapshot.tree for which, snapshot in self._snapshots.items()}
        taken = run_folders(self._work / "run").taken
        self._locks = locks_of_commits(self.request, trees, taken, adapters.files, self._reader.ask)
        head, locks = self._snapshots[Commit.HEAD], self._locks[Commit.HEAD]
        keep_code(self.request, adapters.git, head, locks, adapters.files)
        pointers = partial(
            pointers_of_commit, request=self.request, files=adapters.files, ask=self._reader.ask
        )
        self._declared = DeclaredData(
            DataPreparation(
                self.request, adapters, self.isolation, pointers, self._reader.ask, self._recorded
            )
        )
        ends.callback(self._declared.store.close)
        made = self.request.settings.preprocess
        if made is not None:
            self._preprocessing = Preprocessing(
                self.request, made, adapters, self._declared.store, self._reader.ask, self._work
            )
        self._declared.prepare(self._snapshots, taken)
        # head's preprocessing too runs before the first training
        self._launcher(Commit.HEAD, Commit.HEAD)

    def _launcher_in(self, environment: TrainingEnvironment) -> Launcher:
        adapters = self.adapters
        return Launcher(
            files=adapters.files,
            processes=adapters.processes,
            progress=adapters.progress,
            settings=self.request.settings,
            isolation=environment.isolation,
            host=environment.host,
            call=self._call,
        )

    def _launcher(self, environment: Commit, commit: Commit) -> Launcher:
        """Starts the runs of a commit in the environment of one."""
        launcher = replace(self._launchers[environment], data=self._declared.fetched(commit))
        preprocessing = self._preprocessing
        if preprocessing is None or not preprocessing.is_due(commit):
            return launcher
        made = preprocessing.of_commit(commit, launcher, self._snapshots[commit])
        taken = run_folders(self._work / "run").taken
        self._declared.add(commit, made.output, made.fetched, made.listing, taken)
        self._unrepeated = made.unrepeated or self._unrepeated
        return replace(launcher, data=self._declared.fetched(commit))

    @property
    def data(self) -> DataSets:
        """The declared data that head's runs find."""
        return self._declared.sets(Commit.HEAD)

    @property
    def brings_data(self) -> bool:
        """Whether the base commit names other data than head."""
        return self._declared.brought

    def _image(self) -> str:
        container = self.isolation.container
        return container.image_id[:200] if container is not None else ""

    @property
    def own_environments(self) -> bool:
        """Whether the base commit trains in its own environment, and head in another."""
        return Commit.BASE in self._launchers

    def run(self, planned: PlannedRun) -> RunEvidence:
        """One run from empty folders to evidence on disk."""
        files = self.adapters.files
        folders = run_folders(self._work / "run", planned.varied)
        no_base = self._no_base or self._declared.base_fault
        if planned.commit is Commit.BASE and no_base is not None:
            raise no_base
        launcher = self._launcher(planned.environment, planned.commit)
        snapshot = self._snapshots[planned.commit]
        files.fresh_folder(self._work / "run")
        files.fresh_folder(folders.taken)
        with self.adapters.progress.running(planned.described):
            try:
                record, result = launcher.run(planned, snapshot, folders)
            except RunError as fault:
                detailed = with_missing_file(fault, folders.tree, snapshot, self._left_out)
                raise explained(detailed, self._refusals(folders)) from fault
        # before anything of the run is read: nobody is left who could change a file meanwhile
        self.adapters.clean_up(launcher.isolation)
        # copied out of the account's reach first, read afterwards (T3 in docs/architecture.md)
        kinds, tree = capture.kinds_of(planned), folders.tree / snapshot.workdir
        with self._call.own(OwnWork.READING, planned.label):
            taken = capture.capture_files(files, folders.out, folders.taken, kinds)
            saved = self._saved_copy(planned, tree, folders.taken)
            # not here: this process will hold the key (T5 in docs/architecture.md)
            evidence = self._read(record, result.output, folders, tree, taken, saved)
        self._gpu.look(evidence, self.isolation)
        refuse_unusable(evidence, self.request.settings, self._gpu.missed)
        if planned.window is not None or planned.varied is not None:
            return evidence
        second = planned.label == SECOND_STRICT
        self._kept.keep(planned.label, result.output, () if second else taken)
        if saved is not None:
            self._kept.keep_saved(saved.files)
            self._saved = saved.kept
        if second and taken:
            self._keep_apart(evidence, taken[0], folders.taken)
        self._first = evidence if planned.label == FIRST_STRICT else self._first
        return evidence

    def _saved_copy(self, planned: PlannedRun, tree: Path, taken: Path) -> SavedCopy | None:
        """What the script saved in the run that is packed, where it is to be packed."""
        settings, packed = self.request.settings, planned.label == FIRST_STRICT
        if not packed or settings.train.checkpoint is None or not settings.package.checkpoint:
            return None
        place = taken / "saved"
        return capture_saved(self.adapters.files, tree, settings.train.checkpoint, place)

    def _read(
        self,
        record: RunRecord,
        output: bytes,
        folders: RunFolders,
        tree: Path,
        taken: tuple[CapturedFile, ...],
        saved: SavedCopy | None,
    ) -> RunEvidence:
        """The run's files, parsed by a separate process."""
        self.adapters.files.write_bytes(folders.taken / OUTPUT_FILE, output)
        request = ReadingRequest(
            task=ReadingTask.RUN,
            out=str(folders.out.absolute()),
            tree=str(tree.absolute()),
            output=str((folders.taken / OUTPUT_FILE).absolute()),
            taken=_by_name(taken, saved),
            run=record,
            train=self.request.settings.train,
        )
        evidence = self._reader.ask(request, folders.taken).evidence
        self.isolation = replace(self.isolation, reading=self._reader.parser_unsandboxed_reason)
        if evidence is None:
            raise EvidenceError(
                "the process that reads the run's files gave no evidence", hint=NO_ANSWER_HINT
            )
        return leave_out_packages(evidence, self.request.settings.environment.ignore)

    def traces(self) -> Traces:
        """The operator traces of the newest run."""
        folders = run_folders(self._work / "run")
        request = ReadingRequest(task=ReadingTask.TRACES, out=str(folders.out.absolute()))
        return self._reader.ask(request, folders.taken).traces

    def _refusals(self, folders: RunFolders) -> tuple[Refusal, ...]:
        """The operators that a failed run was refused, as far as what it left can be read.

        A broken file must not hide why the run failed.
        """
        request = ReadingRequest(task=ReadingTask.REFUSALS, out=str(folders.out.absolute()))
        try:
            return self._reader.ask(request, folders.taken).refused
        except EvidenceError:
            return ()

    def _keep_apart(self, second: RunEvidence, taken: CapturedFile, folder: Path) -> None:
        """Keep the second strict run's state when it is another than the first's, and how far."""
        if self._first is None or not capture.ends_diverged(self._first, second):
            return
        evidence = self.request.out / "evidence"
        first = self._kept.file(capture.FIRST_STATE)
        distance = self._reader.distance(first, taken.path, folder)
        self.adapters.files.move_file(taken.path, evidence / capture.SECOND_STATE)
        state = KeptFile(name=capture.SECOND_STATE, sha256=taken.sha256)
        self._apart = DivergedStates(state=state, distance=distance)

    def weight_distance(self, first: str, newest: str) -> WeightDistance:
        """How far the newest run's weights are from the first's, as the reading process finds.

        The newest run's values are gone then: the disk need not hold those of every run.
        """
        files, taken = self.adapters.files, run_folders(self._work / "run").taken
        second = taken / capture.STATE_FILE
        folder = self.request.out / "evidence" / newest
        files.move_file(folder / capture.STATE_FILE, second)
        files.remove_tree(folder / capture.GRADIENTS_FILE)
        kept = self._kept.file(f"{first}/{capture.STATE_FILE}")
        answer = self._reader.ask_of_kept(ReadingTask.WEIGHTS, kept, taken, second)
        if answer.weights is None:
            raise EvidenceError("the process that reads weights gave none", hint=NO_ANSWER_HINT)
        return answer.weights

    def keeps_gradients(self, label: str) -> bool:
        """Whether the harness saved gradients in this run."""
        return any(kept.name == f"{label}/{capture.GRADIENTS_FILE}" for kept in self._kept.files)

    def reduction_spread(self, label: str) -> ReductionSpread | None:
        """What the order of summation does to a run's gradients; None where none can be summed."""
        kept = self._kept.file(f"{label}/{capture.GRADIENTS_FILE}")
        taken = run_folders(self._work / "run").taken
        return self._reader.ask_of_kept(ReadingTask.REDUCTION, kept, taken).reduction

    def evidence(
        self,
        runs: tuple[RunEvidence, ...],
        seeded: tuple[SeededRun, ...] = (),
        trace: TraceFinding | None = None,
        tried: TriedSettings | None = None,
    ) -> EvidenceSet:
        """All runs as one document, written to the evidence folder; call it after the last run."""
        # once more at the end: each run was a copy of it,
        # and one run could have changed it for the next
        check_snapshots(self._snapshots, self.adapters.files)
        self._declared.refuse_changed()
        snapshot = self._snapshots[Commit.HEAD]
        evidence = EvidenceSet(
            commit=snapshot.commit,
            base_commit=self.request.base_commit,
            snapshot_digest=snapshot.digest,
            settings_digest=settings_digest(self.request.settings),
            training_digest=training_digest(self.request.settings),
            changed_files=snapshot.changed_files,
            created_at=self.adapters.clock.now().isoformat(),
            runs=runs,
            seeded=seeded,
            kept=tuple(self._kept.files),
            saved=self._saved,
            apart=self._apart,
            gpu_missed=self._gpu.missed,
            machine=self.adapters.machine().model_copy(update={"image": self._image()}),
            locks=self._locks[Commit.HEAD],
            base_locks=self._locks.get(Commit.BASE, ()),
            trace=trace,
            tried=tried,
            data=self.data,
            base_data=self._declared.sets(Commit.BASE),
            unrepeated=self._unrepeated,
        )
        for name, data in evidence_documents(evidence):
            self.adapters.files.write_bytes(self.request.out / "evidence" / name, data)
        return evidence


def _by_name(taken: tuple[CapturedFile, ...], saved: SavedCopy | None) -> dict[str, str]:
    """The copies that the reader finds in the place of what the run left."""
    copies = {captured.name: str(captured.path.absolute()) for captured in taken}
    if saved is not None and saved.tree is not None:
        copies[SAVED_COPY] = str(saved.tree.absolute())
    return copies
