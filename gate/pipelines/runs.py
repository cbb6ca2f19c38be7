"""The runs of one call: snapshots exported once, folders emptied for each run, evidence kept."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Self

from gate.comparison.measurements import ReductionSpread, WeightDistance
from gate.data.data_sets import DataSets, UnrepeatedData
from gate.diagnosis.touched_lines import data_files
from gate.errors import EvidenceError, RepositoryError, RunError
from gate.evidence.evidence_folder import EvidenceFolder, WrittenDocument
from gate.evidence.operator_logs import explained
from gate.evidence.run_evidence import EvidenceSet, RunEvidence, SeededRun
from gate.evidence.trace import TraceFinding, Traces, TriedSettings
from gate.evidence.usable import refuse_unusable
from gate.isolation.process_request import ProcessRequest
from gate.package.packing import keep_code
from gate.pipelines.adapters import Adapters
from gate.pipelines.declared_data import DataPreparation, DeclaredData
from gate.pipelines.environments import GpuSearch, TrainingEnvironment, training_environments
from gate.pipelines.fresh_process import FreshReader
from gate.pipelines.preprocess import Preprocessing
from gate.pipelines.snapshots import check_snapshots, export_all, prepare_out
from gate.pipelines.tree_files import locks_of_commits, pointers_of_commit
from gate.pipelines.turns import (
    Aside,
    Begun,
    EndedRuns,
    Fitting,
    RunRead,
    Turns,
    alone,
    places_of,
    seconds_alone,
)
from gate.settings.load import settings_digest, training_digest
from gate.system.git.changes import Change
from gate.training.lanes import Lane, Turn, in_groups
from gate.training.launch import Launcher, drop_short_names, run_folders, short_of_room
from gate.training.missing_files import NotCommitted, Project, with_missing_file
from gate.training.probe import probe_training
from gate.training.run_folders import made_harness
from gate.training.runs import Commit, PlannedRun, RunEnd, RunRecord, Snapshot
from gate.training.timeline import CallTime, OwnWork
from gate.verdict.request import GateRequest


class Session:
    """The runs of one call: snapshots exported once, folders emptied for each run."""

    def __init__(
        self,
        request: GateRequest,
        adapters: Adapters,
        *,
        runs_base: bool = False,
        recorded: DataSets = (),
        at_a_time: int = 1,
        call: CallTime | None = None,
    ) -> None:
        """Nothing is touched before `with` is entered; `runs_base`: whatever the policy says.

        `recorded` is the declared data of the entry that may judge. `at_a_time` is how many runs
        could go beside each other, where the machine can do that; `call` keeps the time.
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
        self._at_a_time = at_a_time
        self._first: RunEvidence | None = None
        self._failed_beside: dict[str, tuple[str, ...]] = {}
        self._gpu = GpuSearch(request.settings, adapters, self._work / "run", probe_training)
        self._folder = EvidenceFolder(adapters.files, request.out / "evidence")
        self.documents: tuple[WrittenDocument, ...] = ()
        self.change: Change | None = None
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        """Export the code and decide how the training is isolated."""
        with ExitStack() as ends, self._call.own(OwnWork.PREPARING):
            self._prepare(ends)
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave no process and no copy of the code behind, however the body ended."""
        with self._call.own(OwnWork.CLEANING):
            self._ends.close()

    def _prepare(self, ends: ExitStack) -> None:
        adapters = self.adapters
        prepare_out(self.request.out, adapters.files)
        ends.callback(adapters.release)  # last of all: the account owns files in the work folder
        # registered before the folder is made: callbacks
        # run backwards, so this one after the clean-up
        ends.callback(adapters.files.remove_tree, self._work)
        ends.callback(drop_short_names, adapters.files, self._work / "run")
        adapters.files.fresh_folder(self._work)
        self._snapshots, self._no_base = export_all(
            self.request, adapters, self._work, runs_base=self._runs_base
        )
        # asked now: git does not look at the clone once a training has run
        self._left_out = NotCommitted(
            ignored=adapters.git.ignored(), untracked=adapters.git.untracked()
        )
        self._project = Project(
            top=self.request.top,
            folder=self.request.repository_path("."),
            files=adapters.files,
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
        self._harness = made_harness(adapters.files)
        self._launchers = {
            which: self._launcher_in(environment) for which, environment in environments.items()
        }
        self._reader = self._started_reader(ends)
        self._aside = Aside(adapters.files, self._work / "used")
        self._ended = EndedRuns(
            self.request.settings,
            adapters.files,
            self._reader,
            self._work / "run",
            self.request.out / "evidence",
            self._aside,
        )
        self._prepare_inputs(ends)
        self._make_places(ends)

    def _started_reader(self, ends: ExitStack) -> FreshReader:
        """Trainings may live while it reads, and all of their account is ended with them."""
        adapters = self.adapters
        reading = adapters.for_reading(self.isolation)
        ends.callback(adapters.clean_up, reading)
        return ends.enter_context(
            FreshReader(adapters.files, adapters.answering, adapters.progress, reading.credentials)
        )

    def _make_places(self, ends: ExitStack) -> None:
        """After the preprocessing, which runs in the place where ended runs will lie."""
        adapters, settings = self.adapters, self.request.settings
        places = alone(self._work, self.isolation)
        if self._at_a_time > 1:
            places = places_of(settings, adapters, self.isolation, self._work, self._at_a_time)
        adapters.files.fresh_folder(self._work / "run")
        self._fitting = Fitting(settings, adapters, len(places.core_sets) or 1)
        self._turns = Turns(
            ends.enter_context(adapters.processes.together()),
            places.lanes,
            places.core_sets,
            self._prepare_run,
            (adapters.files, adapters.progress, adapters.clock),
        )

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
            harness=self._harness,
            call=self._call,
        )

    def _launcher(self, environment: Commit, commit: Commit) -> Launcher:
        """Starts the runs of a commit in the environment of one."""
        launcher = replace(
            self._launchers[environment],
            data=self._declared.fetched(commit),
            changed=data_files(self.change),
        )
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
        """One run from empty folders to evidence on disk, alone on the machine."""
        ((evidence,),) = self._turn(Turn(runs=(planned,)), ())
        return evidence

    def together(self, planned: tuple[PlannedRun, ...]) -> tuple[RunEvidence, ...]:
        """Runs that nobody times, as many at a time as there are places."""
        turns = self.in_turns(in_groups(planned, self.at_a_time))
        return tuple(run for turn in turns for run in turn)

    def in_turns(self, turns: tuple[Turn, ...]) -> Generator[tuple[RunEvidence, ...]]:
        """The evidence of each turn when it has ended; who stops asking stops what is ahead.

        Runs of a turn that cannot go beside each other come one by one: the first may be an answer.
        """
        try:
            for number, turn in enumerate(turns, 1):
                yield from self._turn(turn, turns[number].runs if number < len(turns) else ())
        finally:
            self._turns.drop()

    @property
    def at_a_time(self) -> int:
        """How many runs may go at the same time."""
        return self._turns.at_a_time

    def _turn(
        self, turn: Turn, following: tuple[PlannedRun, ...]
    ) -> Generator[tuple[RunEvidence, ...]]:
        self._refuse_missing_base(turn.runs)
        several = len(turn.runs) > 1
        if several and len(turn.runs) > self._fitting.together(self._first):
            # one after the other, each of the later ones started ahead
            rest = (*turn.runs[1:], *following)
            yield from self._turn(replace(turn, runs=turn.runs[:1]), rest[:1])
            yield from self._turn(replace(turn, runs=turn.runs[1:]), following)
            return
        seconds = seconds_alone(self._first, self.request.settings.cost) if self._first else 0.0
        ended = self._turns.run(turn, following, seconds)
        yield tuple(self._evidence_of(one) for one in ended)

    def _refuse_missing_base(self, planned: tuple[PlannedRun, ...]) -> None:
        no_base = self._no_base or self._declared.base_fault
        if no_base is not None and any(run.commit is Commit.BASE for run in planned):
            raise no_base

    def _prepare_run(
        self, planned: PlannedRun, lane: Lane, cpus: tuple[int, ...]
    ) -> ProcessRequest:
        launcher = self._launcher(planned.environment, planned.commit).in_lane(lane)
        folders = run_folders(lane.root, planned.varied)
        snapshot = self._snapshots[planned.commit]
        with self._call.own(OwnWork.PREPARING, planned.label):
            self._aside.put(lane.root)
            self.adapters.files.fresh_folder(lane.root)
            return launcher.prepared(planned, snapshot, folders, lane, cpus)

    def _evidence_of(self, one: Begun) -> RunEvidence:
        planned, result = one.planned, one.result
        assert result is not None  # noqa: S101 - its turn has ended; tells the checker
        launcher = self._launcher(planned.environment, planned.commit).in_lane(one.lane)
        # before anything of the run is read: nobody is left who could change a file meanwhile
        if one.lane.place is None or not launcher.isolation.in_container:
            self.adapters.clean_up(launcher.isolation)
        folders = self._ended.move_here(one.lane.root, planned.varied)
        self._turns.release(one)
        snapshot = self._snapshots[planned.commit]
        begun, lane = self._call.at(one.begun_seconds), one.lane.number
        wall = round(result.wall_seconds, 3)
        # a run that failed, or was stopped, took its time as well
        self._call.ran(planned.label, begun_seconds=begun, wall_seconds=wall, lane=lane)
        if one.beside and short_of_room(result):
            return self._repeated(one)
        failure: RunError | None = None
        # a launcher may take the gate's stop for a failure: what every rank says of it decides
        failed = result.exit_code > 0 and not (result.timed_out or result.out_of_memory)
        end = self._ended.end(folders) if failed else RunEnd()
        try:
            if not end.by_stop:
                launcher.refuse_failure(planned, snapshot, one.request, result, end)
        except RunError as fault:
            detailed = with_missing_file(
                fault, folders.tree, snapshot, self._left_out, self._project
            )
            failure = explained(detailed, self._ended.refusals(folders))
            if planned.ends_after is None or result.timed_out:
                raise failure from fault
        beside = self._failed_beside.pop(planned.label, ())
        told = one.times | {"begun_seconds": begun, "lane": lane, "failed_beside": beside}
        record = launcher.record_of(planned, one.request, result).model_copy(update=told)
        with self._call.own(OwnWork.READING, planned.label):
            read = self._read(planned, record, result.output, failure)
        evidence = read.evidence
        self.isolation = replace(self.isolation, reading=self._reader.parser_unsandboxed_reason)
        self._gpu.look(evidence, self.isolation)
        refuse_unusable(evidence, self.request.settings, self._gpu.missed)
        if planned.window is None and planned.varied is None:
            self._first = self._first or evidence
            self._ended.keep(read)
        return evidence

    def _read(
        self, planned: PlannedRun, record: RunRecord, output: bytes, failure: RunError | None
    ) -> RunRead:
        """What a run left; of one that failed because it was stopped on purpose too.

        What comes behind a training, such as a second script, may miss what it would have saved.
        """
        workdir = self._snapshots[planned.commit].workdir
        try:
            read = self._ended.read(planned, record, output, workdir)
        except EvidenceError as fault:
            if failure is None:
                raise
            raise failure from fault
        last = planned.ends_after
        if failure is not None and (last is None or len(read.evidence.steps) < last):
            raise failure
        return read

    def _repeated(self, one: Begun) -> RunEvidence:
        """Memory or time that another run took is no fault of this one."""
        others = " and ".join(one.beside)
        self._failed_beside[one.planned.label] = one.beside
        self.adapters.progress.step(
            f"run {one.planned.label} failed beside {others}, perhaps for lack of memory: it is "
            "repeated alone"
        )
        self._fitting.most = 1
        return self.run(one.planned)

    def traces(self) -> Traces:
        """The operator traces of the newest run."""
        return self._ended.traces()

    def weight_distance(self, first: str, newest: str) -> WeightDistance:
        """How far the newest run's weights are from the first's; the newest's are gone then."""
        return self._ended.weight_distance(first, newest)

    def keeps_gradients(self, label: str) -> bool:
        """Whether the harness saved gradients in this run."""
        return self._ended.keeps_gradients(label)

    def reduction_spread(self, label: str) -> ReductionSpread | None:
        """What the order of summation does to a run's gradients; None where none can be summed."""
        return self._ended.reduction_spread(label)

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
            kept=tuple(self._ended.kept.files),
            saved=self._ended.saved,
            apart=self._ended.apart,
            gpu_missed=self._gpu.missed,
            machine=self.adapters.machine().model_copy(update={"image": self._image()}),
            locks=self._locks[Commit.HEAD],
            base_locks=self._locks.get(Commit.BASE, ()),
            trace=trace,
            tried=tried,
            data=self.data,
            base_data=self._declared.sets(Commit.BASE),
            unrepeated=self._unrepeated,
            change=self.change,
        )
        self.documents = self._folder.write(evidence)
        return evidence
