"""What the runs of one call need before the first starts: code, data, places and a reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

from gate.data.data_sets import DataSets, UnrepeatedData
from gate.diagnosis.touched_lines import data_files
from gate.errors import RepositoryError, RunError, StorageError
from gate.evidence.lock_files import LockFile
from gate.isolation.cluster_settings import ClusterSettings
from gate.isolation.modes import Isolation
from gate.isolation.process_request import ProcessGroup
from gate.package.packing import keep_code
from gate.pipelines.adapters import Adapters
from gate.pipelines.declared_data import DataPreparation, DeclaredData
from gate.pipelines.environments import training_environments
from gate.pipelines.fresh_process import FreshReader
from gate.pipelines.preprocess import Preprocessing
from gate.pipelines.snapshots import check_snapshots, export_all, prepare_out
from gate.pipelines.tree_files import locks_of_commits, pointers_of_commit
from gate.pipelines.turns import Places, places_of
from gate.settings.gate_settings import GateSettings
from gate.system.files.port import Files
from gate.system.git.changes import Change
from gate.training.launch import Launcher, drop_short_names, run_folders
from gate.training.missing_files import NotCommitted, Project
from gate.training.run_folders import made_harness
from gate.training.runs import Commit, PlannedRun, Snapshot
from gate.training.timeline import CallTime, OwnWork
from gate.verdict.request import GateRequest


class Aside:
    """Moves folders out of the way into `folder`, which is removed at the end of the call.

    Removing them at once would slow the next run down: a file system may create files slowly where
    many were just removed (see `trees.set_aside`).
    """

    def __init__(self, files: Files, folder: Path) -> None:
        """Only store references; nothing on disk is touched."""
        self._files = files
        self._folder = folder
        self._numbers = count()

    def put(self, path: Path) -> None:
        """Free a path by moving its content away; a path without content is fine."""
        self._files.set_aside(path, self._folder / str(next(self._numbers)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """Everything that the runs of one call share, from before the first until after the last.

    `launchers` start trainings in head's environment, and in the base commit's own if it has one.
    `no_base` says why the base commit cannot run. `change` contains the changed lines, as far as a
    run gets to know them.
    """

    request: GateRequest
    adapters: Adapters
    call: CallTime
    work: Path
    snapshots: Mapping[Commit, Snapshot]
    no_base: RepositoryError | None
    not_committed: NotCommitted
    launchers: Mapping[Commit, Launcher]
    reader: FreshReader
    locks: Mapping[Commit, tuple[LockFile, ...]]
    declared: DeclaredData
    preprocessing: Preprocessing | None
    places: Places
    processes: ProcessGroup
    aside: Aside
    change: Change | None = None

    @property
    def place(self) -> Path:
        """The folder of the newest run that ended."""
        return self.work / "run"

    @property
    def isolation(self) -> Isolation:
        """The isolation of head's runs."""
        return self.launchers[Commit.HEAD].isolation

    @property
    def own_environments(self) -> bool:
        """Whether the base commit trains in an environment of its own, different from head's."""
        return Commit.BASE in self.launchers

    @property
    def data(self) -> DataSets:
        """The declared data that head's runs find."""
        return self.declared.sets(Commit.HEAD)

    @property
    def unrepeated(self) -> UnrepeatedData | None:
        """The files that the preprocessing wrote differently when it ran again, or None."""
        return self.preprocessing.unrepeated if self.preprocessing is not None else None

    @property
    def project(self) -> Project:
        """The user's own files, to explain a run that misses one."""
        request = self.request
        folder = request.repository_path(".")
        return Project(top=request.top, folder=folder, files=self.adapters.files)

    def launcher(self, environment: Commit, commit: Commit) -> Launcher:
        """Return the launcher for `commit` in the environment of `environment`.

        If the commit's preprocessing has not run yet, it runs first.
        """
        launcher = replace(
            self.launchers[environment],
            data=self.declared.fetched(commit),
            changed=data_files(self.change),
        )
        preprocessing = self.preprocessing
        if preprocessing is None or not preprocessing.is_due(commit):
            return launcher
        made = preprocessing.of_commit(commit, launcher, self.snapshots[commit])
        taken = run_folders(self.place).taken
        self.declared.add(commit, made.output, made.fetched, made.listing, taken)
        return replace(launcher, data=self.declared.fetched(commit))

    def refuse_missing_base(self, planned: tuple[PlannedRun, ...]) -> None:
        """Raise the error that keeps the base commit from running, if a planned run needs it."""
        no_base = self.no_base or self.declared.base_fault
        if no_base is not None and any(run.commit is Commit.BASE for run in planned):
            raise no_base

    def refuse_changed(self) -> None:
        """Raise `RunError` if code or data is no longer what the runs were given."""
        # each run had a copy of the snapshot; a run that changed the snapshot changed all later
        # runs
        check_snapshots(self.snapshots, self.adapters.files)
        self.declared.refuse_changed()


@contextmanager
def prepare(
    request: GateRequest,
    adapters: Adapters,
    *,
    runs_base: bool = False,
    recorded: DataSets = (),
    at_a_time: int = 1,
    call: CallTime | None = None,
) -> Iterator[Prepared]:
    """Export the code and decide on the isolation; at the end remove every process and copy.

    `runs_base` prepares the base commit even if the policy does not ask for it. `recorded` is the
    declared data of the entry that may judge. `at_a_time` is how many runs could go side by side if
    the machine allows it. `call` records times.
    """
    call = call or CallTime(adapters.clock)
    runs_base = runs_base or request.settings.policy.run_base_on_drift
    with ExitStack() as begun:
        with call.own(OwnWork.PREPARING):
            work = _work_folder(request, adapters, begun)
            snapshots, no_base = export_all(request, adapters, work, runs_base=runs_base)
            # ask now: the gate does not let git look at the clone after a training
            ignored, untracked = adapters.git.ignored(), adapters.git.untracked()
            launchers = _launchers(request, adapters, work, call, begun)
            isolation = launchers[Commit.HEAD].isolation
            reader = _started_reader(adapters, isolation, begun)
            declared = _declared(request, adapters, isolation, reader, recorded)
            begun.callback(declared.store.close)
            # the confined process reads from a folder where no run has been yet
            taken = run_folders(work / "run").taken
            locks = _locks(request, adapters, snapshots, reader, taken)
            declared.prepare(snapshots, taken)
            made = request.settings.preprocess
            _allocate(request.settings, adapters)
            prepared = Prepared(
                request=request,
                adapters=adapters,
                call=call,
                work=work,
                snapshots=snapshots,
                no_base=no_base,
                not_committed=NotCommitted(ignored=ignored, untracked=untracked),
                launchers=launchers,
                reader=reader,
                locks=locks,
                declared=declared,
                preprocessing=Preprocessing(
                    request, made, adapters, declared.store, reader.ask, work
                )
                if made is not None
                else None,
                places=places_of(request.settings, adapters, isolation, work, at_a_time),
                processes=begun.enter_context(adapters.processes.together()),
                aside=Aside(adapters.files, work / "used"),
            )
            # head's preprocessing also runs before the first training, in the place for ended runs
            prepared.launcher(Commit.HEAD, Commit.HEAD)
            adapters.files.fresh_folder(prepared.place)
        ends = begun.pop_all()
    try:
        yield prepared
    finally:
        with call.own(OwnWork.CLEANING):
            ends.close()


def _work_folder(request: GateRequest, adapters: Adapters, ends: ExitStack) -> Path:
    work = _work_place(request, adapters)
    prepare_out(request.out, adapters.files)
    ends.callback(adapters.release)  # last of all: the account owns files in the work folder
    # callbacks run in reverse order, so this one removes the folder after the clean-up
    ends.callback(adapters.files.remove_tree, work)
    ends.callback(drop_short_names, adapters.files, work / "run")
    # other users can see a cluster's shared folder, so it is closed to them
    adapters.files.fresh_folder(work, mode=0o700 if request.settings.cluster.on_nodes else 0o755)
    return work


def _allocate(settings: GateSettings, adapters: Adapters) -> None:
    """Wait for the nodes of a cluster, if the runs go to one.

    The job's time limit is estimated from the number of runs that the call is likely to make.
    """
    if settings.cluster.on_nodes:
        seeded = len(settings.seeds) * max(1, len(settings.variants))
        runs = max(settings.repeats, settings.noise.runs) + seeded
        for run in adapters.cluster.cancel_orphans(adapters.progress.step):
            # a node may still hold files of the orphan; this call does not wait for it
            with suppress(StorageError):
                adapters.files.remove_tree(_call_folder(settings.cluster, run))
        adapters.cluster.allocate(settings.cluster, runs, adapters.progress.step)


def _call_folder(cluster: ClusterSettings, run: str) -> Path:
    return Path(cluster.folder or "") / f"call-{run}"


def _work_place(request: GateRequest, adapters: Adapters) -> Path:
    """Return the work folder: below the output folder, or in the shared folder of a cluster.

    Raises `RunError` if this machine has no such shared folder.
    """
    cluster = request.settings.cluster
    if cluster.folder is None or not cluster.on_nodes:
        return request.out / "work"
    folder = Path(cluster.folder)
    if not adapters.files.is_folder(folder):
        raise RunError(
            f"cluster.folder {folder} is not a folder of this machine",
            hint="Make it, on a file system that this machine and every node see at that path.",
        )
    return _call_folder(cluster, adapters.run)


def _launchers(
    request: GateRequest, adapters: Adapters, work: Path, call: CallTime, ends: ExitStack
) -> dict[Commit, Launcher]:
    environments = training_environments(
        request, adapters.isolate, work, adapters.host, adapters.base_path
    )
    isolation = environments[Commit.HEAD].isolation
    adapters.progress.step(isolation.announced)
    if isolation.needs_restricted_paths:
        ends.enter_context(adapters.closed((request.out,), work / "run"))
    for environment in environments.values():
        ends.callback(adapters.clean_up, environment.isolation)
        # an earlier call's leftovers under this account would be visible to the first run
        adapters.clean_up(environment.isolation)
    harness = made_harness(adapters.files)
    return {
        which: Launcher(
            files=adapters.files,
            processes=adapters.processes,
            progress=adapters.progress,
            settings=request.settings,
            isolation=environment.isolation,
            host=environment.host,
            harness=harness,
            call=call,
        )
        for which, environment in environments.items()
    }


def _started_reader(adapters: Adapters, isolation: Isolation, ends: ExitStack) -> FreshReader:
    """Start the confined reader under an account of its own.

    The reader works while trainings live. The end of a training ends every process of its account.
    """
    reading = adapters.for_reading(isolation)
    ends.callback(adapters.clean_up, reading)
    return ends.enter_context(
        FreshReader(adapters.files, adapters.answering, adapters.progress, reading.credentials)
    )


def _declared(
    request: GateRequest,
    adapters: Adapters,
    isolation: Isolation,
    reader: FreshReader,
    recorded: DataSets,
) -> DeclaredData:
    files, ask = adapters.files, reader.ask
    pointers = partial(pointers_of_commit, request=request, files=files, ask=ask)
    return DeclaredData(DataPreparation(request, adapters, isolation, pointers, ask, recorded))


def _locks(
    request: GateRequest,
    adapters: Adapters,
    snapshots: Mapping[Commit, Snapshot],
    reader: FreshReader,
    taken: Path,
) -> dict[Commit, tuple[LockFile, ...]]:
    """Return the lock files of every commit that may be trained; keep head's for the package."""
    trees = {which: snapshot.tree for which, snapshot in snapshots.items()}
    locks = locks_of_commits(request, trees, taken, adapters.files, reader.ask)
    head = snapshots[Commit.HEAD]
    keep_code(request, adapters.git, head, locks[Commit.HEAD], adapters.files)
    return locks
