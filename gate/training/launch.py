"""Makes one run: empty folders, a fresh copy of the code, a new process, a record of its end."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gate.data.declared import FetchedData
from gate.isolation.cluster_processes import new_step
from gate.isolation.modes import Isolation
from gate.isolation.process_request import Processes, ProcessRequest, ProcessResult
from gate.settings.gate_settings import GateSettings
from gate.settings.variations import Folder
from gate.system.console import Progress
from gate.system.files.port import Files
from gate.text.untrusted_text import last_lines
from gate.training.child_environment import (
    child_environment,
    preemption_variables,
    with_trial,
)
from gate.training.failed_run import Hints, refuse_failed_run
from gate.training.lanes import Lane
from gate.training.missing_files import Lacking, data_hint, not_given
from gate.training.plan import training_of
from gate.training.run_folders import (
    HarnessCopy,
    elsewhere,
    links_of,
    mounts_of,
    on_its_node,
    place_checkpoint,
    place_data,
)
from gate.training.runs import (
    PlannedRun,
    RunEnd,
    RunFolders,
    RunRecord,
    Snapshot,
    Varied,
)
from gate.training.timeline import CallTime

LET_GO = "REPRO_GATE_LET_GO"
ELSEWHERE = "-elsewhere"
NO_MODULE = re.compile(rb"No module named '([A-Za-z_]\w{0,99})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Launcher:
    """What every run of one gate call shares.

    `changed` are files of data and settings that the change touches; each run reports which of them
    it reads.
    """

    files: Files
    processes: Processes
    progress: Progress
    settings: GateSettings
    isolation: Isolation
    host: Mapping[str, str]
    harness: HarnessCopy
    call: CallTime
    data: tuple[FetchedData, ...] = ()
    changed: tuple[str, ...] = ()

    def run(
        self,
        planned: PlannedRun,
        snapshot: Snapshot,
        folders: RunFolders,
    ) -> tuple[RunRecord, ProcessResult]:
        """Run once in emptied folders, where nothing comes from another run.

        Raises `RunError` if the training failed, timed out or could not be started. Such runs are
        never compared, however alike two failures look.
        """
        request = self.prepared(planned, snapshot, folders)
        begun = self.call.seconds
        result = self.processes.run(request, self.progress.output)
        wall = round(result.wall_seconds, 3)
        self.call.ran(planned.label, begun_seconds=begun, wall_seconds=wall)
        record = self.record(planned, snapshot, request, result)
        return record.model_copy(update={"begun_seconds": begun}), result

    def in_lane(self, lane: Lane) -> Launcher:
        """Return this launcher with the account of a lane, if the lane has one."""
        isolation = replace(self.isolation, credentials=lane.account)
        own = lane.account is None or self.isolation.in_container
        return self if own else replace(self, isolation=isolation)

    def prepared(
        self,
        planned: PlannedRun,
        snapshot: Snapshot,
        folders: RunFolders,
        lane: Lane | None = None,
        cpus: tuple[int, ...] = (),
    ) -> ProcessRequest:
        """Fill `folders` with fresh copies of all that the run needs; return what to start.

        In a lane the run sees the folders at the lane's other path, and waits for the signal to go.
        """
        prepare_folders(self.files, snapshot, folders, self.isolation, self.harness, self.data)
        if planned.carried is not None:
            place_checkpoint(self.files, planned.carried, folders.tree, snapshot.workdir)
            # the copied checkpoint belongs to the gate's account until now
            for account in self.isolation.own_accounts:
                self.files.give_to(folders.tree, account.uid, account.gid)
        place = None if lane is None else lane.place
        if place is None:
            return self._request(planned, snapshot, folders)
        seen = run_folders(place.target, planned.varied)
        request = self._request(planned, snapshot, seen)
        env = {**request.env, LET_GO: str(sign_of(seen))}
        return replace(request, env=env, place=place, cpus=cpus)

    def record(
        self,
        planned: PlannedRun,
        snapshot: Snapshot,
        request: ProcessRequest,
        result: ProcessResult,
    ) -> RunRecord:
        """Return the record of a run; raises `RunError` if it failed or timed out."""
        self.refuse_failure(planned, snapshot, request, result)
        return self.record_of(planned, request, result)

    def refuse_failure(
        self,
        planned: PlannedRun,
        snapshot: Snapshot,
        request: ProcessRequest,
        result: ProcessResult,
        end: RunEnd | None = None,
    ) -> None:
        """Raise `RunError` for a run that failed or timed out.

        `end` is what the run's processes reported about its end.
        """
        known = self._data_hint(request, result, snapshot) or self._module_hint(result, snapshot)
        hints = Hints(known=known, workdir=snapshot.workdir)
        refuse_failed_run(planned, result, request, hints, end or RunEnd())

    def record_of(
        self, planned: PlannedRun, request: ProcessRequest, result: ProcessResult
    ) -> RunRecord:
        """Return the record of a run, also of one that failed."""
        return RunRecord(
            label=planned.label,
            mode=planned.mode,
            commit=planned.commit,
            argv=request.argv,
            exit_code=result.exit_code,
            timed_out=result.timed_out,
            wall_seconds=round(result.wall_seconds, 3),
            output_bytes=result.output_bytes,
            isolation=self.isolation.of_a_run,
            environment=planned.environment,
            partial=planned.ends_after is not None,
        )

    def _data_hint(self, request: ProcessRequest, result: ProcessResult, snapshot: Snapshot) -> str:
        if result.exit_code == 0 or result.timed_out or result.out_of_memory:
            return ""
        lacking = Lacking(
            request=request,
            snapshot=snapshot,
            project_workdir=self.settings.train.workdir,
            output=result.output,
            lines=last_lines(result.output),
        )
        return data_hint(lacking, self.files)

    def _temporary(self, folders: RunFolders) -> Path | None:
        """Return a short path of the run's temporary folder, or None where /tmp is private anyway.

        That is in containers and on nodes.
        """
        if self.isolation.in_container or self.settings.cluster.on_nodes:
            return None
        # made or checked before each run, because what one run did to the link must not reach the
        # next
        return self.files.short_link(folders.tmp, for_others=bool(self.isolation.own_accounts))

    def _module_hint(self, result: ProcessResult, snapshot: Snapshot) -> str:
        """Return the hint for a missing module or script that the repository itself contains."""
        missing = NO_MODULE.findall(result.output)
        name = missing[-1].decode("ascii") if missing else ""
        # if the script itself is missing, only the command names it
        named = (name, f"{name}.py") if name else self.settings.train.command[1:]
        for path in named:
            inside = posixpath.normpath(f"{snapshot.workdir}/{path}")
            hint = "" if inside.startswith("..") else not_given(inside, snapshot, self.files)
            if hint:
                return hint
        if not name or not self.files.exists(snapshot.tree / name):
            return ""
        return (
            f"{name} is a folder of this repository: set train.workdir to the folder that "
            "contains it, or start the script as a module (python -m)."
        )

    def _request(
        self,
        planned: PlannedRun,
        snapshot: Snapshot,
        folders: RunFolders,
    ) -> ProcessRequest:
        train = training_of(planned, self.settings.train)
        settings = with_trial(self.settings.model_copy(update={"train": train}), planned.trial)
        train = settings.train
        root = folders.tree.parent
        seconds, step = train.timeout_seconds, None
        if self.settings.cluster.on_nodes:
            cluster = self.settings.cluster
            folders = on_its_node(folders)
            seconds = min(seconds, cluster.run_seconds)
            step = new_step(cluster, root, elsewhere=elsewhere(planned, cluster))
        host = self.isolation.host_variables(self.host, train.pass_env)
        return ProcessRequest(
            argv=train.command,
            env={
                **child_environment(planned, settings, folders, host, self._temporary(folders)),
                **preemption_variables(planned, folders.tree / snapshot.workdir),
                "REPRO_GATE_DECLARED": links_of(self.data, self.isolation),
                "REPRO_GATE_CHANGED": os.pathsep.join(self.changed),
            },
            workdir=folders.tree / snapshot.workdir,
            timeout_seconds=_most_seconds(planned, seconds),
            output_limit_bytes=train.output_limit_bytes,
            credentials=self.isolation.credentials,
            network=self.isolation.network,
            container=self.isolation.container,
            # the tree first: `missing_files.py` takes the first folder for it
            writable=(folders.tree, folders.home, folders.tmp, folders.out),
            readable=(folders.harness, folders.data),
            mounts=mounts_of(self.data, folders, self.isolation),
            step=step,
        )


def _most_seconds(planned: PlannedRun, timeout_seconds: float) -> float:
    bounded = planned.window or planned.varied
    return timeout_seconds if bounded is None else min(timeout_seconds, bounded.max_seconds)


def sign_of(folders: RunFolders) -> Path:
    """Return the file whose existence lets a run go; only the gate can write in its folder."""
    return folders.harness / "go"


def run_folders(root: Path, varied: Varied | None = None) -> RunFolders:
    """Return the folders of a run below `root`; equal paths keep paths out of the result.

    `varied` can change some of the paths, to test whether they are in the result all the same.
    """
    elsewhere = () if varied is None else varied.variation.folders
    named = {folder: root / f"{folder}{ELSEWHERE * (folder in elsewhere)}" for folder in Folder}
    return RunFolders(
        tree=named[Folder.TREE],
        home=named[Folder.HOME],
        tmp=named[Folder.TMP],
        out=named[Folder.OUT],
        data=root / "data",
        harness=root / "harness",
        taken=root / "taken",
    )


def drop_short_names(files: Files, root: Path) -> None:
    """Remove the short links to the temporary folders of runs below `root`."""
    for name in (Folder.TMP, f"{Folder.TMP}{ELSEWHERE}"):
        files.drop_short_link(root / name)


def prepare_folders(
    files: Files,
    snapshot: Snapshot,
    folders: RunFolders,
    isolation: Isolation,
    harness: HarnessCopy,
    data: tuple[FetchedData, ...] = (),
) -> None:
    """Empty every folder, copy code and harness again, and give them to the training's account."""
    for folder in (folders.home, folders.tmp, folders.out):
        # closed first, given away last: at no moment can a third account write there
        files.fresh_folder(folder, mode=0o700)
    files.remove_tree(folders.tree)
    files.copy_tree(snapshot.given, folders.tree)
    # copied again for every run: even if one run could change it, the next would not start with
    # that
    harness.put(files, folders.harness)
    place_data(files, data, folders, isolation)
    for account in isolation.own_accounts:
        for folder in (folders.tree, folders.home, folders.tmp, folders.out):
            files.give_to(folder, account.uid, account.gid)
