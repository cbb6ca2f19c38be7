"""The runs of one call, from empty folders to written evidence.

`Trainings` starts planned runs in turns. `EndedRuns` reads, keeps and writes what they leave.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, fields, replace
from pathlib import Path

from gate.comparison.measurements import ReductionSpread, WeightDistance
from gate.errors import EvidenceError, RunError
from gate.evidence import capture
from gate.evidence.capture import (
    OUTPUT_FILE,
    SAVED_COPY,
    CapturedFile,
    KeptFiles,
    SavedCopy,
    capture_saved,
)
from gate.evidence.evidence_folder import EvidenceFolder, WrittenDocument
from gate.evidence.node_reports import NodeReport
from gate.evidence.observations import ResumeAttempt
from gate.evidence.operator_logs import explained
from gate.evidence.operator_records import Refusal
from gate.evidence.python_processes import SeveralTrainedError
from gate.evidence.rank_environments import leave_out_packages
from gate.evidence.resume_evidence import CheckpointLook, carry_checkpoint
from gate.evidence.run_evidence import (
    DivergedStates,
    EvidenceSet,
    KeptFile,
    RunEvidence,
    SavedFiles,
    SeededRun,
)
from gate.evidence.trace import TraceFinding, Traces, TriedSettings
from gate.evidence.usable import refuse_unusable
from gate.isolation.modes import Isolation
from gate.isolation.process_request import ClusterStep, ProcessRequest, ProcessResult
from gate.pipelines.cluster_runs import as_its_task_ended, gather, with_node_at_fault, with_nodes
from gate.pipelines.environments import GpuSearch
from gate.pipelines.prepared import Prepared
from gate.pipelines.reader_questions import (
    CheckpointQuestion,
    EndQuestion,
    ReductionQuestion,
    RefusalsQuestion,
    RunQuestion,
    TracesQuestion,
    WeightsQuestion,
)
from gate.pipelines.turns import Begun, Fitting, Turns, seconds_alone
from gate.settings.load import settings_digest, training_digest
from gate.training.failed_run import short_of_room
from gate.training.lanes import Lane, Turn, in_groups
from gate.training.launch import Launcher, run_folders
from gate.training.missing_files import with_missing_file
from gate.training.probe import probe_training
from gate.training.runs import (
    FIRST_STRICT,
    SECOND_STRICT,
    CarriedCheckpoint,
    CarriedFile,
    Commit,
    PlannedRun,
    RunEnd,
    RunFolders,
    RunRecord,
    StoppedBy,
    Varied,
)
from gate.training.timeline import OwnWork


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRead:
    """A run that has been read, with the copies of its files that may be kept."""

    planned: PlannedRun
    evidence: RunEvidence
    output: bytes
    taken: tuple[CapturedFile, ...]
    saved: SavedCopy | None


class EndedRuns:
    """The newest run that ended, and what is kept of each earlier one.

    `documents` are the files that the evidence was written to. `resume` is the result of carrying a
    checkpoint from one run to another.
    """

    def __init__(self, prepared: Prepared) -> None:
        """Only store references; nothing on disk is touched."""
        request, adapters = prepared.request, prepared.adapters
        self._prepared = prepared
        self._settings = request.settings
        self._files = adapters.files
        self._reader = prepared.reader
        self._place = prepared.place
        self._evidence = request.out / "evidence"
        self._folder = EvidenceFolder(adapters.files, self._evidence)
        self._kept = KeptFiles(self._evidence, adapters.files)
        self._saved: SavedFiles | None = None
        self._apart: DivergedStates | None = None
        self._first: RunEvidence | None = None
        self._gpu = GpuSearch(request.settings, adapters, prepared.place, probe_training)
        self.documents: tuple[WrittenDocument, ...] = ()
        self.resume: ResumeAttempt | None = None

    @property
    def isolation(self) -> Isolation:
        """The isolation of the runs, with the reason if the confined reader has no sandbox."""
        reading = self._reader.parser_unsandboxed_reason
        return replace(self._prepared.isolation, reading=reading)

    def folders(self, varied: Varied | None = None) -> RunFolders:
        """Return the folders of the newest run."""
        return run_folders(self._place, varied)

    def move_here(self, root: Path, varied: Varied | None = None) -> RunFolders:
        """Move a run's files from its lane to the common place; all its processes must be gone.

        The common root folder itself stays, because other runs have their lanes mounted there.
        """
        source, target = run_folders(root, varied), run_folders(self._place, varied)
        if source != target:
            for name in (field.name for field in fields(RunFolders)):
                there = getattr(target, name)
                self._prepared.aside.put(there)
                if self._files.exists(getattr(source, name)):
                    self._files.move_file(getattr(source, name), there)
        self._files.fresh_folder(target.taken)
        self._reader.let_read(target.out, target.tree)
        return target

    def read(self, planned: PlannedRun, record: RunRecord, output: bytes, workdir: str) -> RunRead:
        """Return the evidence of a run; nothing of it is kept yet.

        Raises `SeveralTrainedError` if more than one process of the run trained.
        """
        folders = self.folders(planned.varied)
        # copied out of the account's reach first, read afterwards (T3 in docs/architecture.md)
        tree = folders.tree / workdir
        try:
            taken = capture.capture_files(
                self._files, folders.out, folders.taken, capture.kinds_of(planned)
            )
        except SeveralTrainedError:
            # several trained processes: their files show whether they raced or followed each other,
            # and the gate's process parses no files itself (T5)
            self._parsed(record, output, folders, tree, (), None)
            raise
        saved = self._saved_copy(planned, tree, folders.taken)
        # not in this process, which later holds the key (T5 in docs/architecture.md)
        evidence = self._parsed(record, output, folders, tree, taken, saved)
        return RunRead(planned=planned, evidence=evidence, output=output, taken=taken, saved=saved)

    def refuse_unusable(self, run: RunEvidence) -> None:
        """Raise `EvidenceError` for a run that cannot be judged.

        If the run should have used a GPU and did not, a probe first looks for the reason.
        """
        self._gpu.look(run, self.isolation)
        refuse_unusable(run, self._settings, self._gpu.missed)

    def keep(self, run: RunRead) -> None:
        """Keep the output of the newest run and the state that it ended in."""
        label, taken = run.planned.label, run.taken
        second = label == SECOND_STRICT
        # the second state is kept only if it differs, which `_keep_apart` decides
        self._kept.keep(label, run.output, () if second else taken)
        if run.saved is not None:
            self._kept.keep_saved(run.saved.files)
            self._saved = run.saved.kept
        if second and taken:
            self._keep_apart(run.evidence, taken[0], self.folders().taken)
        self._first = run.evidence if label == FIRST_STRICT else self._first

    def _saved_copy(self, planned: PlannedRun, tree: Path, taken: Path) -> SavedCopy | None:
        """Return a copy of the script's checkpoint, if this run is packed and a copy is wanted."""
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
        """Return the run's evidence, parsed by the confined reader."""
        self._files.write_bytes(folders.taken / OUTPUT_FILE, output)
        question = RunQuestion(
            out=folders.out,
            tree=tree,
            output=folders.taken / OUTPUT_FILE,
            taken=_by_name(taken, saved),
            run=record,
            train=self._settings.train,
        )
        answer = self._reader.ask(question)
        # reported by the harness: the gate itself sees only the exit code
        by = StoppedBy.MAX_STEPS if answer.end.stopped else StoppedBy.SCRIPT
        run = record.model_copy(update={"stopped_by": by})
        evidence = answer.evidence.model_copy(update={"run": run})
        return leave_out_packages(evidence, self._settings.environment.ignore)

    def carry(self, place: str, step: int) -> CarriedCheckpoint:
        """Copy the newest run's checkpoint out of the training's reach and return the copy."""
        prepared = self._prepared
        workdir = self.folders().tree / prepared.snapshots[Commit.HEAD].workdir
        return carry_checkpoint(self._files, workdir, place, prepared.work / "carried", step)

    def checkpoint(self, place: str, whole: CheckpointLook | None = None) -> CheckpointLook:
        """Return what the newest run left at the checkpoint's path.

        `whole` is the field of `CheckpointQuestion`. Raises what `FreshReader.ask` raises.
        """
        folders = self.folders()
        tree = folders.tree / self._prepared.snapshots[Commit.HEAD].workdir
        return self._reader.ask(
            CheckpointQuestion(out=folders.out, tree=tree, place=place, whole=whole)
        )

    def traces(self) -> Traces:
        """Return the operator traces of the newest run."""
        return self._reader.ask(TracesQuestion(out=self.folders().out))

    def end(self, folders: RunFolders) -> RunEnd:
        """Return how the processes of a failed run ended, or an empty record if unreadable."""
        try:
            return self._reader.ask(EndQuestion(out=folders.out))
        except EvidenceError:
            return RunEnd()

    def refusals(self, folders: RunFolders) -> tuple[Refusal, ...]:
        """Return the operators that torch refused in a failed run, as far as readable.

        A broken file must not hide why the run failed.
        """
        try:
            return self._reader.ask(RefusalsQuestion(out=folders.out))
        except EvidenceError:
            return ()

    def _keep_apart(self, second: RunEvidence, taken: CapturedFile, folder: Path) -> None:
        """Keep the second strict run's state if it differs from the first's, with the distance."""
        if self._first is None or not capture.ends_diverged(self._first, second):
            return
        first = self._kept.file(capture.FIRST_STATE)
        distance = self._reader.distance(first, taken.path, folder)
        self._files.move_file(taken.path, self._evidence / capture.SECOND_STATE)
        state = KeptFile(name=capture.SECOND_STATE, sha256=taken.sha256)
        self._apart = DivergedStates(state=state, distance=distance)

    def weight_distance(self, first: str, newest: str) -> WeightDistance:
        """Return how far the newest run's weights are from the first run's.

        The reading process measures it. The newest run's values are then removed, so that the disk
        need not hold the values of every run.
        """
        taken = self.folders().taken
        second = taken / capture.STATE_FILE
        folder = self._evidence / newest
        # the reader cannot open the evidence folder, so the file joins the copies
        self._files.move_file(folder / capture.STATE_FILE, second)
        self._files.remove_tree(folder / capture.GRADIENTS_FILE)
        kept, sha256 = self._kept.file(f"{first}/{capture.STATE_FILE}")
        question = WeightsQuestion(first=kept, second=second)
        return self._reader.ask_of_kept(question, sha256, taken)

    def keeps_gradients(self, label: str) -> bool:
        """Whether the harness saved gradients in this run."""
        return any(kept.name == f"{label}/{capture.GRADIENTS_FILE}" for kept in self._kept.files)

    def take_gradients(self, label: str, target: Path) -> CarriedFile:
        """Move a run's gradients out of the evidence to `target`, and remove its state's values."""
        kept, sha256 = self._kept.file(f"{label}/{capture.GRADIENTS_FILE}")
        self._files.move_file(kept, target)
        self._files.remove_tree(self._evidence / label / capture.STATE_FILE)
        return CarriedFile(
            name=target.name, path=target, sha256=sha256, size_bytes=capture.MAX_STATE_BYTES
        )

    def reduction_spread(self, label: str) -> ReductionSpread | None:
        """Return how far the order of summation moves a run's gradients; None without a sum."""
        kept, sha256 = self._kept.file(f"{label}/{capture.GRADIENTS_FILE}")
        question = ReductionQuestion(first=kept)
        return self._reader.ask_of_kept(question, sha256, self.folders().taken)

    def evidence(
        self,
        runs: tuple[RunEvidence, ...],
        seeded: tuple[SeededRun, ...] = (),
        trace: TraceFinding | None = None,
        tried: TriedSettings | None = None,
    ) -> EvidenceSet:
        """Write all runs to the evidence folder as one document; call it after the last run.

        Raises `RunError` if code or data changed since the runs were prepared.
        """
        prepared = self._prepared
        # checked after the last run: what is packed has to be what was trained
        prepared.refuse_changed()
        request, adapters = prepared.request, prepared.adapters
        snapshot, container = prepared.snapshots[Commit.HEAD], prepared.isolation.container
        image = container.image_id[:200] if container is not None else ""
        evidence = EvidenceSet(
            commit=snapshot.commit,
            base_commit=request.base_commit,
            snapshot_digest=snapshot.digest,
            settings_digest=settings_digest(request.settings),
            training_digest=training_digest(request.settings),
            changed_files=snapshot.changed_files,
            created_at=adapters.clock.now().isoformat(),
            runs=runs,
            seeded=seeded,
            kept=tuple(self._kept.files),
            saved=self._saved,
            apart=self._apart,
            gpu_missed=self._gpu.missed,
            machine=adapters.machine().model_copy(update={"image": image}),
            locks=prepared.locks[Commit.HEAD],
            base_locks=prepared.locks.get(Commit.BASE, ()),
            trace=trace,
            tried=tried,
            data=prepared.data,
            base_data=prepared.declared.sets(Commit.BASE),
            unrepeated=prepared.unrepeated,
            change=prepared.change,
            resume=self.resume,
            files_digest=snapshot.part_digest,
        )
        self.documents = self._folder.write(evidence)
        return evidence


def _by_name(taken: tuple[CapturedFile, ...], saved: SavedCopy | None) -> dict[str, Path]:
    """Return the copies that the reader reads in place of the run's own files."""
    copies = {captured.name: captured.path for captured in taken}
    if saved is not None and saved.tree is not None:
        copies[SAVED_COPY] = saved.tree
    return copies


class Trainings:
    """Runs what is planned, with what is `prepared`; `ended` reads and keeps each run's files."""

    def __init__(self, prepared: Prepared) -> None:
        """Start no process yet."""
        self.prepared = prepared
        self.ended = EndedRuns(prepared)
        settings, adapters = prepared.request.settings, prepared.adapters
        self._turns = Turns(
            prepared.processes, prepared.places, self._prepare_run, adapters, settings
        )
        self._fitting = Fitting(settings, adapters, prepared.isolation, self._turns.at_a_time)
        self._first: RunEvidence | None = None
        self._failed_beside: dict[str, tuple[str, ...]] = {}

    def run(self, planned: PlannedRun) -> RunEvidence:
        """Make one run, alone on the machine, and return its evidence."""
        ((evidence,),) = self._turn(Turn(runs=(planned,)), ())
        return evidence

    def together(self, planned: tuple[PlannedRun, ...]) -> tuple[RunEvidence, ...]:
        """Make runs that are not timed, as many at a time as there are places."""
        turns = self.in_turns(in_groups(planned, self.at_a_time))
        return tuple(run for turn in turns for run in turn)

    def in_turns(self, turns: tuple[Turn, ...]) -> Generator[tuple[RunEvidence, ...]]:
        """Yield the evidence of each turn after its end.

        Closing the generator ends the runs that were started ahead.

        If the runs of a turn cannot go side by side, they are yielded one by one, because the first
        may already decide.
        """
        self._turns.watch.series(sum(len(turn.runs) for turn in turns))
        try:
            for number, turn in enumerate(turns, 1):
                yield from self._turn(turn, turns[number].runs if number < len(turns) else ())
        finally:
            self._turns.drop()
            self._turns.watch.series(0)

    def resumed(
        self, planned: PlannedRun, killed: tuple[PlannedRun, ...]
    ) -> tuple[RunEvidence, Generator[Begun]]:
        """Make a run from a checkpoint, beside the runs that are killed inside a save.

        Return the evidence of the resumed run and a generator of the killed runs. Pass each killed
        run to `how_it_ended`. Close the generator to stop the remaining ones.
        """
        ended = self._independent((planned, *killed))
        try:
            return self._evidence_of(next(ended)), ended
        except BaseException:
            ended.close()
            raise

    def how_it_ended(self, begun: Begun) -> str:
        """Return how a run without evidence failed, as a clause; empty if it did not fail.

        Its files stay in place until the next run's are moved there.
        """
        launcher, _, _ = self._taken(begun)
        assert begun.result is not None  # noqa: S101 - its turn has ended; tells the checker
        # a neighbour may have caused the failure, so the answer is taken from a run that goes alone
        if begun.beside and short_of_room(begun.result):
            self._tell_repeated(begun)
            (alone,) = self._turns.run(Turn(runs=(begun.planned,)))
            return self.how_it_ended(alone)
        snapshot = self.prepared.snapshots[begun.planned.commit]
        try:
            launcher.refuse_failure(begun.planned, snapshot, begun.request, begun.result)
        except RunError as fault:
            return fault.message
        return ""

    def _independent(self, planned: tuple[PlannedRun, ...]) -> Generator[Begun]:
        """Yield runs whose failures end no other run, each after its turn.

        The consumer has to take each run's files before it asks for the next one.
        """
        ended = list[Begun]()
        try:
            while planned:
                # asked for each group again: a failure for lack of room lowers the number to one
                most = self._fitting.together(self._first)
                group, planned = planned[:most], planned[most:]
                ended += self._turns.run(Turn(runs=group, independent=True), planned[:most])
                while ended:
                    yield ended.pop(0)
        finally:
            # a run that nobody asked for still has a lane and files: take both back
            for begun in ended:
                self._taken(begun)
            self._turns.drop()

    @property
    def at_a_time(self) -> int:
        """How many runs may go at the same time."""
        return self._turns.at_a_time

    def _turn(
        self, turn: Turn, following: tuple[PlannedRun, ...]
    ) -> Generator[tuple[RunEvidence, ...]]:
        self.prepared.refuse_missing_base(turn.runs)
        several = len(turn.runs) > 1
        if several and len(turn.runs) > self._fitting.together(self._first):
            # one after the other; the next run is always started ahead
            rest = (*turn.runs[1:], *following)
            yield from self._turn(replace(turn, runs=turn.runs[:1]), rest[:1])
            yield from self._turn(replace(turn, runs=turn.runs[1:]), following)
            return
        cost = self.prepared.request.settings.cost
        seconds = seconds_alone(self._first, cost) if self._first else 0.0
        ended = self._turns.run(turn, following, seconds)
        yield tuple(self._evidence_of(begun) for begun in ended)

    def _prepare_run(
        self, planned: PlannedRun, lane: Lane, cpus: tuple[int, ...]
    ) -> ProcessRequest:
        prepared = self.prepared
        launcher = prepared.launcher(planned.environment, planned.commit).in_lane(lane)
        folders = run_folders(lane.root, planned.varied)
        snapshot = prepared.snapshots[planned.commit]
        with prepared.call.own(OwnWork.PREPARING, planned.label):
            prepared.aside.put(lane.root)
            prepared.adapters.files.fresh_folder(lane.root)
            request = launcher.prepared(planned, snapshot, folders, lane, cpus)
        if request.step is not None and request.step.elsewhere:
            prepared.adapters.cluster.allocate(
                request.step.settings, 1, prepared.adapters.progress.step, elsewhere=True
            )
        return request

    def _taken(self, started: Begun) -> tuple[Launcher, RunFolders, tuple[NodeReport, ...]]:
        """Take over the files of a run that has ended, from the nodes of a cluster too."""
        prepared, planned, result = self.prepared, started.planned, started.result
        assert result is not None  # noqa: S101 - its turn has ended; tells the checker
        launcher = prepared.launcher(planned.environment, planned.commit).in_lane(started.lane)
        # before the gate reads a file: after this no process can change a file while it is read
        if started.lane.place is None or not launcher.isolation.in_container:
            prepared.adapters.clean_up(launcher.isolation)
        folders = self.ended.move_here(started.lane.root, planned.varied)
        self._turns.release(started)
        reports = self._gathered(started.request.step, result, folders.out)
        begun, lane = prepared.call.at(started.begun_seconds), started.lane.number
        wall = round(result.wall_seconds, 3)
        # also for a failed or stopped run: its time was spent as well
        prepared.call.ran(planned.label, begun_seconds=begun, wall_seconds=wall, lane=lane)
        return launcher, folders, reports

    def _gathered(
        self, step: ClusterStep | None, result: ProcessResult, out: Path
    ) -> tuple[NodeReport, ...]:
        """Collect a run's documents from the nodes, and return what the nodes report.

        The documents are then in the same places as those of a run on this machine.
        """
        prepared = self.prepared
        if step is None:
            return ()
        if result.timed_out:
            # a run on lost nodes looks like a timeout but is none: `refuse_lost` raises for it
            prepared.adapters.cluster.refuse_lost(step)
            return ()
        with prepared.call.own(OwnWork.READING):
            prepared.adapters.cluster.collect(step)
            return gather(prepared.adapters, prepared.reader.ask, step, out)

    def _evidence_of(self, started: Begun) -> RunEvidence:
        prepared, planned, result = self.prepared, started.planned, started.result
        assert result is not None  # noqa: S101 - its turn has ended; tells the checker
        launcher, folders, reports = self._taken(started)
        result = as_its_task_ended(result, reports)
        snapshot = prepared.snapshots[planned.commit]
        begun, lane = prepared.call.at(started.begun_seconds), started.lane.number
        # before any reading: such a run is repeated alone, and its files are not used
        if started.beside and short_of_room(result):
            return self._repeated(started)
        failure: RunError | None = None
        # a launcher such as torchrun may report the gate's own stop as a failure; what every rank
        # says of its end decides
        failed = result.exit_code > 0 and not (result.timed_out or result.out_of_memory)
        ended_well = result.exit_code == 0 and not result.timed_out
        end = RunEnd() if ended_well else self.ended.end(folders)
        try:
            if not (failed and end.by_stop):
                launcher.refuse_failure(planned, snapshot, started.request, result, end)
        except RunError as fault:
            placed = with_node_at_fault(fault, reports, started.request.step)
            detailed = with_missing_file(
                placed, folders.tree, snapshot, prepared.not_committed, prepared.project
            )
            failure = explained(detailed, self.ended.refusals(folders))
            # a run that is stopped on purpose often exits with an error; `_read` decides whether
            # its evidence suffices
            if planned.ends_after is None or result.timed_out:
                raise failure from fault
        beside = self._failed_beside.pop(planned.label, ())
        timing = started.times | {"begun_seconds": begun, "lane": lane, "failed_beside": beside}
        record = launcher.record_of(planned, started.request, result).model_copy(update=timing)
        with prepared.call.own(OwnWork.READING, planned.label):
            read = self._read(planned, record, result.output, failure)
        evidence = with_nodes(read.evidence, reports)
        read = replace(read, evidence=evidence)
        self.ended.refuse_unusable(evidence)
        # a traced or varied run is never the reference, and nothing of it is kept
        if planned.window is None and planned.varied is None:
            self._first = self._first or evidence
            self.ended.keep(read)
        return evidence

    def _read(
        self, planned: PlannedRun, record: RunRecord, output: bytes, failure: RunError | None
    ) -> RunRead:
        """Return a read run, also of a failed run that was stopped on purpose.

        Code after the training, such as a second script, may fail because the stopped training did
        not save its result. Raises `failure` if the run has fewer steps than planned.
        """
        workdir = self.prepared.snapshots[planned.commit].workdir
        try:
            read = self.ended.read(planned, record, output, workdir)
        except EvidenceError as fault:
            if failure is None:
                raise
            # the run's own failure is the better message than the file that it did not write
            raise failure from fault
        last = planned.ends_after
        if failure is not None and (last is None or len(read.evidence.steps) < last):
            raise failure
        return read

    def _repeated(self, begun: Begun) -> RunEvidence:
        """Run it again alone: its neighbours may have taken its memory, time or port."""
        self._failed_beside[begun.planned.label] = begun.beside
        self._tell_repeated(begun)
        return self.run(begun.planned)

    def _tell_repeated(self, begun: Begun) -> None:
        others = " and ".join(begun.beside)
        self.prepared.adapters.progress.step(
            f"run {begun.planned.label} failed side by side with {others}, perhaps for lack of "
            "memory or a port: it is re-run alone"
        )
        self._fitting.most = 1
