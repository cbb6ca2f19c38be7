"""A run that has ended: taken out of its place, copied out of the training's reach, then read."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Protocol

from gate.comparison.measurements import ReductionSpread, WeightDistance
from gate.errors import EvidenceError
from gate.evidence import capture
from gate.evidence.capture import OUTPUT_FILE, CapturedFile, KeptFiles
from gate.evidence.environment import leave_out_packages
from gate.evidence.observed_trace import Traces
from gate.evidence.one_a_rank import SeveralTrainedError
from gate.evidence.operators import Refusal
from gate.evidence.run_evidence import DivergedStates, KeptFile, RunEvidence, SavedFiles
from gate.evidence.saved_files import SAVED_COPY, SavedCopy, capture_saved
from gate.evidence.state_distance import StateDistance
from gate.pipelines.aside import Aside
from gate.pipelines.reading import ReadingAnswer, ReadingRequest, ReadingTask
from gate.settings.gate_settings import GateSettings
from gate.system.files.port import Files
from gate.training.launch import run_folders
from gate.training.runs import (
    FIRST_STRICT,
    SECOND_STRICT,
    PlannedRun,
    RunEnd,
    RunFolders,
    RunRecord,
    StoppedBy,
    Varied,
)
from gate.verdict.cached_runs import CachedRuns

NO_ANSWER_HINT = "This is a bug in repro-gate; please report it."


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRead:
    """A run that has been read, and what may be kept of it."""

    planned: PlannedRun
    evidence: RunEvidence
    output: bytes
    taken: tuple[CapturedFile, ...]
    saved: SavedCopy | None


class Reader(Protocol):
    """What is asked of the process that reads; see `gate.pipelines.fresh_process`."""

    def let_read(self, *folders: Path) -> None: ...  # noqa: D102 - as there

    def ask(self, request: ReadingRequest) -> ReadingAnswer: ...  # noqa: D102

    def distance(  # noqa: D102
        self, first: tuple[Path, str], second: Path, folder: Path
    ) -> StateDistance | None: ...

    def ask_of_kept(  # noqa: D102
        self, task: ReadingTask, kept: tuple[Path, str], folder: Path, against: Path | None = None
    ) -> ReadingAnswer: ...


class EndedRuns:
    """The newest run that ended lies in `place`; what is kept of each goes to `evidence`."""

    def __init__(
        self,
        settings: GateSettings,
        files: Files,
        reader: Reader,
        place: Path,
        evidence: Path,
        aside: Aside,
    ) -> None:
        """Nothing is touched."""
        self._aside = aside
        self._settings = settings
        self._files = files
        self._reader = reader
        self._place = place
        self._evidence = evidence
        self.kept = KeptFiles(evidence, files)
        self.saved: SavedFiles | None = None
        self.apart: DivergedStates | None = None
        self._first: RunEvidence | None = None

    def folders(self, varied: Varied | None = None) -> RunFolders:
        """Where the newest run's files are."""
        return run_folders(self._place, varied)

    def move_here(self, root: Path, varied: Varied | None = None) -> RunFolders:
        """Take a run's files out of its place, once none of its processes lives.

        The folder itself stays: other runs see theirs at its path.
        """
        source, target = run_folders(root, varied), run_folders(self._place, varied)
        if source != target:
            for name in (field.name for field in fields(RunFolders)):
                there = getattr(target, name)
                self._aside.put(there)
                if self._files.exists(getattr(source, name)):
                    self._files.move_file(getattr(source, name), there)
        self._files.fresh_folder(target.taken)
        self._reader.let_read(target.out, target.tree)
        return target

    def read(self, planned: PlannedRun, record: RunRecord, output: bytes, workdir: str) -> RunRead:
        """The run's evidence; nothing is kept of it yet."""
        folders = self.folders(planned.varied)
        # copied out of the account's reach first, read afterwards (T3 in docs/architecture.md)
        tree = folders.tree / workdir
        try:
            taken = capture.capture_files(
                self._files, folders.out, folders.taken, capture.kinds_of(planned)
            )
        except SeveralTrainedError:
            # whether they raced or followed each other is in their files, which are not read here
            self._parsed(record, output, folders, tree, (), None)
            raise
        saved = self._saved_copy(planned, tree, folders.taken)
        # not here: this process will hold the key (T5 in docs/architecture.md)
        evidence = self._parsed(record, output, folders, tree, taken, saved)
        return RunRead(planned=planned, evidence=evidence, output=output, taken=taken, saved=saved)

    def keep(self, run: RunRead) -> None:
        """Keep what the newest run printed and ended in."""
        label, taken = run.planned.label, run.taken
        second = label == SECOND_STRICT
        self.kept.keep(label, run.output, () if second else taken)
        if run.saved is not None:
            self.kept.keep_saved(run.saved.files)
            self.saved = run.saved.kept
        if second and taken:
            self._keep_apart(run.evidence, taken[0], self.folders().taken)
        self._first = run.evidence if label == FIRST_STRICT else self._first

    def _saved_copy(self, planned: PlannedRun, tree: Path, taken: Path) -> SavedCopy | None:
        """What the script saved in the run that is packed, where it is to be packed."""
        settings, packed = self._settings, planned.label == FIRST_STRICT
        if not packed or settings.train.checkpoint is None or not settings.package.checkpoint:
            return None
        return capture_saved(self._files, tree, settings.train.checkpoint, taken / "saved")

    def _parsed(
        self,
        record: RunRecord,
        output: bytes,
        folders: RunFolders,
        tree: Path,
        taken: tuple[CapturedFile, ...],
        saved: SavedCopy | None,
    ) -> RunEvidence:
        """The run's files, parsed by a separate process."""
        self._files.write_bytes(folders.taken / OUTPUT_FILE, output)
        request = ReadingRequest(
            task=ReadingTask.RUN,
            out=str(folders.out.absolute()),
            tree=str(tree.absolute()),
            output=str((folders.taken / OUTPUT_FILE).absolute()),
            taken=_by_name(taken, saved),
            run=record,
            train=self._settings.train,
        )
        answer = self._reader.ask(request)
        if answer.evidence is None or answer.end is None:
            raise EvidenceError(
                "the process that reads the run's files gave no evidence", hint=NO_ANSWER_HINT
            )
        by = StoppedBy.MAX_STEPS if answer.end.stopped else StoppedBy.SCRIPT
        run = record.model_copy(update={"stopped_by": by})
        evidence = answer.evidence.model_copy(update={"run": run})
        return leave_out_packages(evidence, self._settings.environment.ignore)

    def traces(self) -> Traces:
        """The operator traces of the newest run."""
        folders = self.folders()
        request = ReadingRequest(task=ReadingTask.TRACES, out=str(folders.out.absolute()))
        return self._reader.ask(request).traces

    def cached_runs(self, data: bytes) -> CachedRuns | None:
        """What an earlier call kept of a base commit's runs."""
        path = self.folders().taken / "cached-runs.json"
        self._files.write_bytes(path, data)
        request = ReadingRequest(
            task=ReadingTask.CACHED_RUNS, out=str(path.absolute()), shown="runs.cache"
        )
        return self._reader.ask(request).cached

    def end(self, folders: RunFolders) -> RunEnd:
        """How the processes of a failed run ended; nothing is said of what cannot be read."""
        request = ReadingRequest(task=ReadingTask.END, out=str(folders.out.absolute()))
        try:
            return self._reader.ask(request).end or RunEnd()
        except EvidenceError:
            return RunEnd()

    def refusals(self, folders: RunFolders) -> tuple[Refusal, ...]:
        """The operators that a failed run was refused, as far as what it left can be read.

        A broken file must not hide why the run failed.
        """
        request = ReadingRequest(task=ReadingTask.REFUSALS, out=str(folders.out.absolute()))
        try:
            return self._reader.ask(request).refused
        except EvidenceError:
            return ()

    def _keep_apart(self, second: RunEvidence, taken: CapturedFile, folder: Path) -> None:
        """Keep the second strict run's state when it is another than the first's, and how far."""
        if self._first is None or not capture.ends_diverged(self._first, second):
            return
        first = self.kept.file(capture.FIRST_STATE)
        distance = self._reader.distance(first, taken.path, folder)
        self._files.move_file(taken.path, self._evidence / capture.SECOND_STATE)
        state = KeptFile(name=capture.SECOND_STATE, sha256=taken.sha256)
        self.apart = DivergedStates(state=state, distance=distance)

    def weight_distance(self, first: str, newest: str) -> WeightDistance:
        """How far the newest run's weights are from the first's, as the reading process finds.

        The newest run's values are gone then: the disk need not hold those of every run.
        """
        taken = self.folders().taken
        second = taken / capture.STATE_FILE
        folder = self._evidence / newest
        self._files.move_file(folder / capture.STATE_FILE, second)
        self._files.remove_tree(folder / capture.GRADIENTS_FILE)
        kept = self.kept.file(f"{first}/{capture.STATE_FILE}")
        answer = self._reader.ask_of_kept(ReadingTask.WEIGHTS, kept, taken, second)
        if answer.weights is None:
            raise EvidenceError("the process that reads weights gave none", hint=NO_ANSWER_HINT)
        return answer.weights

    def keeps_gradients(self, label: str) -> bool:
        """Whether the harness saved gradients in this run."""
        return any(kept.name == f"{label}/{capture.GRADIENTS_FILE}" for kept in self.kept.files)

    def reduction_spread(self, label: str) -> ReductionSpread | None:
        """What the order of summation does to a run's gradients; None where none can be summed."""
        kept = self.kept.file(f"{label}/{capture.GRADIENTS_FILE}")
        return self._reader.ask_of_kept(ReadingTask.REDUCTION, kept, self.folders().taken).reduction


def _by_name(taken: tuple[CapturedFile, ...], saved: SavedCopy | None) -> dict[str, str]:
    """The copies that the reader finds in the place of what the run left."""
    copies = {captured.name: str(captured.path.absolute()) for captured in taken}
    if saved is not None and saved.tree is not None:
        copies[SAVED_COPY] = str(saved.tree.absolute())
    return copies
