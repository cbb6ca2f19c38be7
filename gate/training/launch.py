"""One run: empty folders, a fresh copy of the code, a fresh process, a record of how it ended."""

from __future__ import annotations

import os
import posixpath
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

from gate.data.declared import FetchedData
from gate.errors import RunError, RunTimeoutError
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
    RankEnd,
    RunEnd,
    RunFolders,
    RunRecord,
    Snapshot,
    Varied,
    ended_with,
)
from gate.training.timeline import CallTime

LET_GO = "REPRO_GATE_LET_GO"
ELSEWHERE = "-elsewhere"
PREPROCESS_LIMIT = "preprocess.timeout_seconds"
RANK_LAUNCHERS = {"torchrun", "accelerate", "deepspeed", "mpirun"}
# what torch 2.13 says, for gloo and for its store, where no socket but a local one can be made
RANK_SIGNS = (b"DistNetworkError", b"torch/distributed/", b"Cannot resolve 127.0.0.1 to a (local)")
CONNECTION_SIGNS = (
    b"name resolution",
    b"Name or service not known",
    b"<urlopen error",
    b"NewConnectionError",
    b"ConnectError",
)
MEMORY_SIGNS = (
    *(b"out of memory", b"OutOfMemoryError", b"MemoryError", b"Cannot allocate memory"),
    *(b"CUBLAS_STATUS_ALLOC_FAILED", b"shared memory segment /dev/shm"),
)
# a port by its number, which two runs that share a network cannot both have
PORT_SIGNS = (b"EADDRINUSE", b"Address already in use")
# with a path behind it, as Python tells them
WRITING_SIGNS = (b"Read-only file system: '", b"Permission denied: '")
BY_HAND = (
    "Run the same command by hand in {place}a clean checkout; the details show its last lines."
)
# ranks and Ray's workers put their own name before what they print
TELLER = r"(?:\[rank\d{1,6}\]: |\([^()\n]{1,80}\) )?"
FRAME = re.compile(
    TELLER + r'\s+File "(?P<file>[^"\n]{1,200})", line (?P<line>[1-9]\d{0,6})(?!\d)', re.ASCII
)
EXCEPTION = re.compile(
    TELLER + r"(?P<told>(?P<name>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Stopped))"
    r"\b(?:\([\w.]{1,80}\))?(?:: .*)?)\Z"
)
# what a launcher raises because the script that it started has failed, and warnings
OF_NO_SCRIPT = re.compile(
    r"(?:.*\.)?(?:CalledProcessError|ChildFailedError|ProcessRaisedException|RayTaskError"
    r"|ProcessExitedException|TrainingFailedError|WorkerCrashedError|ActorDiedError"
    r"|WorkerGroupError|ControllerError|UncompletedJobError|FailedJobError|BrokenProcessPool"
    r"|TrainingStopped|\w*Warning)\Z"
)
STOP_SIGNS = (b"TrainingStopped", b"ray.", b"submitit.", b"joblib.", b"BrokenProcessPool")
# a launcher's own traceback stands behind the script's
LOOKED_LINES = 200
SHOWN_RANKS = 8
# what torch says where a rank waited in vain: gloo, the store, NCCL, a monitored barrier
LATE_SIGNS = (
    *(b"Timed out waiting", b"Socket Timeout", b"client socket has timed out"),
    *(b"wait timeout after", b"collective operation timeout", b"failed to pass monitoredBarrier"),
)
LATE_HINT = (
    "A rank came too late to a collective: look for work that one rank does alone (a download, "
    "preprocessing, an evaluation), and let the others wait at a barrier with a longer timeout."
)
NEAR_LINES = 40
BEGINS = re.compile(TELLER + r"Traceback \(most recent call last\)")
NO_MODULE = re.compile(rb"No module named '([A-Za-z_]\w{0,99})")
SIGNAL_HINTS = {
    -signal.SIGBUS: "Often too little shared memory for DataLoader workers: raise the container's "
    "--shm-size, or use num_workers=0 for the smoke training.",
    -signal.SIGKILL: "Killed by SIGKILL, most often for lack of memory: check the machine's "
    "kernel log.",
    -signal.SIGSYS: "It made a system call of another architecture, as a 32-bit program does: "
    "the seccomp filter refuses those.",
    -signal.SIGXFSZ: "It wrote a file larger than the isolation allows (64 GiB).",
}
MORE_SHARED_MEMORY = "Give the container a larger /dev/shm (--shm-size, isolation.shm_bytes)"
NO_COMPILER = (
    "torch.compile and Triton need a compiler where the training runs, and there is none. The "
    "action's full image has one; install gcc, g++ and libc6-dev in your own image."
)
BUSY_GPU = (
    "Another process has the GPU to itself: its compute mode is exclusive, or MPS serves another "
    "account. `repro-gate doctor` says which; run one job at a time, or set the mode to default "
    "(nvidia-smi -c DEFAULT)."
)
OUTPUT_HINTS = {
    b"does not have a deterministic implementation": "An operator has no deterministic form. "
    "Replace it, or compute that part on the CPU; the line above names it.",
    b"EOFError: EOF when reading a line": "The training waits for input on stdin and gets none: "
    "pass the answers as arguments.",
    b"shared memory segment /dev/shm/nccl": "NCCL found no space in /dev/shm. "
    f"{MORE_SHARED_MEMORY}, or fewer ranks to the smoke training.",
    b"pidfd_getfd": "With expandable segments a GPU tensor cannot be shared with another "
    "process: the isolation does not let a process take another's file descriptors. Remove "
    "expandable_segments from PYTORCH_ALLOC_CONF for the smoke training.",
    b"In the deterministic mode of Inductor": "Inductor tried to choose a kernel by timing, "
    "which strict mode refuses. Compile without max-autotune in the smoke training, or set "
    "determinism.knobs.inductor_deterministic to keep, which leaves that knob off.",
    b"Failed to find C compiler": NO_COMPILER,
    b"No working C++ compiler found": NO_COMPILER,
    b"devices are busy or unavailable": BUSY_GPU,
    b"device(s) is/are busy or unavailable": BUSY_GPU,
    b"AF_UNIX path": "The path of a Unix socket is too long for the kernel (107 bytes): set TMPDIR "
    "to /tmp in train.env, or give a shorter --out.",
    **dict.fromkeys(
        PORT_SIGNS,
        "Another program on this machine has that port: let the launcher choose a free one "
        "(torchrun --standalone, or MASTER_PORT in train.env), and end what an earlier job left.",
    ),
    b"No module named": "The training's environment lacks a package: run the gate from the "
    "training's environment, or name its interpreter in train.command.",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Launcher:
    """What every run of one gate call shares.

    `changed` are files of data and settings that the change touches: a run says which it reads.
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
        """Run once in emptied folders; nothing in here comes from what another run left.

        Raises `RunError` when the training failed, timed out or could not be started: then there
        is nothing to compare, however alike two failures look.
        """
        request = self.prepared(planned, snapshot, folders)
        begun = self.call.seconds
        result = self.processes.run(request, self.progress.output)
        wall = round(result.wall_seconds, 3)
        self.call.ran(planned.label, begun_seconds=begun, wall_seconds=wall)
        record = self.record(planned, snapshot, request, result)
        return record.model_copy(update={"begun_seconds": begun}), result

    def in_lane(self, lane: Lane) -> Launcher:
        """The same under the lane's own account."""
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
        """What is to be started, in `folders` that hold a fresh copy of all that it needs.

        In a lane the run sees them at the lane's other path, and waits for the word to go.
        """
        prepare_folders(self.files, snapshot, folders, self.isolation, self.harness, self.data)
        if planned.carried is not None:
            place_checkpoint(self.files, planned.carried, folders.tree, snapshot.workdir)
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
        """How the run ended; raises `RunError` when it failed or timed out."""
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
        """Raise `RunError` for a run that failed or timed out; `end` is what its processes said."""
        hint = self._data_hint(request, result, snapshot) or self._module_hint(result, snapshot)
        by_hand = BY_HAND.format(place="" if snapshot.workdir == "." else f"{snapshot.workdir} of ")
        _refuse_failure(
            planned, result, request, Hints(known=hint, by_hand=by_hand), end or RunEnd()
        )

    def record_of(
        self, planned: PlannedRun, request: ProcessRequest, result: ProcessResult
    ) -> RunRecord:
        """How a run ended, whatever its exit code."""
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
        """A short name of the run's temporary folder; containers and nodes have their own /tmp."""
        if self.isolation.in_container or self.settings.cluster.on_nodes:
            return None
        # looked at before each run: what one did to it must not reach the next
        return self.files.short_link(folders.tmp, for_others=bool(self.isolation.own_accounts))

    def _module_hint(self, result: ProcessResult, snapshot: Snapshot) -> str:
        """Where a module is missing that the repository itself has."""
        missing = NO_MODULE.findall(result.output)
        name = missing[-1].decode("ascii") if missing else ""
        # a script that is not there at all is named by the command alone
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
            writable=(folders.tree, folders.home, folders.tmp, folders.out),
            readable=(folders.harness, folders.data),
            mounts=mounts_of(self.data, folders, self.isolation),
            step=step,
        )


def may_be_stopped(result: ProcessResult) -> bool:
    """Whether a command may have failed for the gate's stop alone, by what it printed.

    Only what the processes themselves told decides that, and it is read when all of them are gone.
    """
    return result.exit_code > 0 and any(sign in result.output for sign in STOP_SIGNS)


def short_of_room(result: ProcessResult) -> bool:
    """Whether a run may have failed for want of memory, time or a port that another one took."""
    if result.timed_out or result.out_of_memory:
        return True
    signs = any(sign in result.output for sign in (*MEMORY_SIGNS, *PORT_SIGNS))
    return result.exit_code in {-signal.SIGKILL, -signal.SIGBUS} or (
        result.exit_code != 0 and signs
    )


def _most_seconds(planned: PlannedRun, timeout_seconds: float) -> float:
    bounded = planned.window or planned.varied
    return timeout_seconds if bounded is None else min(timeout_seconds, bounded.max_seconds)


def sign_of(folders: RunFolders) -> Path:
    """The file whose being there lets a run go; only the gate can write in its folder."""
    return folders.harness / "go"


def run_folders(root: Path, varied: Varied | None = None) -> RunFolders:
    """The paths of every run below `root`; equal paths keep paths out of the result.

    `varied` may ask for others, to see whether they are in it all the same.
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
    """Remove the short names of the temporary folders that runs below `root` had."""
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
    """Empty every folder, copy code and harness afresh, and hand them to the training's account."""
    for folder in (folders.home, folders.tmp, folders.out):
        # closed first and given away afterwards: at no time can a third account write there
        files.fresh_folder(folder, mode=0o700)
    files.remove_tree(folders.tree)
    files.copy_tree(snapshot.given, folders.tree)
    # afresh for every run: even if one could write there, the next would not start with it
    harness.put(files, folders.harness)
    place_data(files, data, folders, isolation)
    for account in isolation.own_accounts:
        for folder in (folders.tree, folders.home, folders.tmp, folders.out):
            files.give_to(folder, account.uid, account.gid)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hints:
    """What to do about a failed run: its `known` cause, or nothing points at one (`by_hand`)."""

    known: str
    by_hand: str


def _refuse_failure(
    planned: PlannedRun,
    result: ProcessResult,
    request: ProcessRequest,
    hints: Hints,
    end: RunEnd,
) -> None:
    label = planned.label
    if result.timed_out:
        bound = planned.window is not None and planned.window.max_seconds
        own = "train.timeout_seconds"
        if bound == request.timeout_seconds:
            own = "diagnosis.budget_seconds"
        if (
            request.step is not None
            and request.step.settings.run_seconds == request.timeout_seconds
        ):
            own = "cluster.run_seconds"
        if planned.varied is not None and planned.varied.max_seconds == request.timeout_seconds:
            own = "far longer than a run in which nothing is varied"
        hint = "Lower train.max_steps or raise train.timeout_seconds."
        if own == "cluster.run_seconds":
            hint = f"Lower train.max_steps or raise {own}."
        if planned.preprocesses:
            own, hint = PREPROCESS_LIMIT, f"Prepare less data, or raise {PREPROCESS_LIMIT}."
        raise RunTimeoutError(
            f"run {label}: timed out after {request.timeout_seconds:g} s ({own})"
            f"{_ranks_behind(end.ranks)}",
            hint=hint,
            details=(*_rank_lines(end.ranks), *last_lines(result.output)),
        )
    if result.exit_code != 0:
        lines, exception = _last_words(result.output)
        of_no_script = not exception or OF_NO_SCRIPT.match(exception.partition(":")[0])
        if end.stopped and not end.failed and of_no_script:
            told = f": {exception}" if exception else ""
            raise RunError(
                f"run {label}: the gate stopped every rank after train.max_steps steps, and then "
                f"the command {_how_it_ended(result)}{told}",
                hint="Let the script end by itself: pass it the number of steps in "
                "train.max_steps, so that nothing has to stop it.",
                details=lines,
            )
        file, line = raised_at(lines, request.workdir)
        where = f" ({file}, line {line})" if file else ""
        own = "" if of_no_script and end.failed else exception
        late = _late(end.ranks, result.output)
        told = f": {own or ' and '.join(end.failed)}" if own or end.failed else ""
        raise RunError(
            f"run {label}: {' '.join(request.argv)[:200]} {_how_it_ended(result)}"
            f"{_rank_words(end.ranks, late=late)}{told}{where}",
            hint=hints.known
            or (LATE_HINT if late else _failure_hint(result, request) or hints.by_hand),
            details=(*_rank_lines(end.ranks), *lines),
            file=file,
            line=line,
        )


def _late(ranks: Sequence[RankEnd], output: bytes) -> bool:
    """Whether a rank gave up waiting while another still ran."""
    timed_out = any(sign in output for sign in LATE_SIGNS)
    waited = any(end.failed for end in ranks)
    return timed_out and waited and any(_blame(end) is Blame.NO_FAULT for end in ranks)


def _rank_words(ranks: Sequence[RankEnd], *, late: bool) -> str:
    """The rank that tells most of a failure: killed, never there, failed; what led to it is open.

    A rank that lost its peer fails too, so one that was killed goes before it, and of `late` ranks
    the one that others waited for.
    """
    ordered = sorted(ranks, key=_blame)
    first = _blame(ordered[0]) if ordered else Blame.NO_FAULT
    behind = [end for end in ordered if _blame(end) is Blame.NO_FAULT]
    if late and behind and first is Blame.RAISED:
        return f" ({behind[0].described}; others timed out waiting)"
    return "" if first is Blame.NO_FAULT else f" ({ordered[0].described})"


class Blame(IntEnum):
    """What a rank's end says of a failure, the most telling first."""

    KILLED = 0
    NEVER_THERE = 1
    RAISED = 2
    NO_FAULT = 3


def _blame(end: RankEnd) -> Blame:
    if end.exit_code not in {None, 0, -signal.SIGTERM} and not end.failed:
        return Blame.KILLED
    if not (end.last_step or end.failed or end.told_its_end or end.node):
        return Blame.NEVER_THERE
    return Blame.RAISED if end.failed else Blame.NO_FAULT


def _ranks_behind(ranks: Sequence[RankEnd]) -> str:
    """Of a run that never ended the rank that came least far, where others came further."""
    behind = min(ranks, key=lambda end: end.last_step, default=None)
    if behind is None or all(end.last_step == behind.last_step for end in ranks):
        return ""
    return f"; {behind.described}"


def _rank_lines(ranks: Sequence[RankEnd]) -> tuple[str, ...]:
    """Each rank in a line, those that tell most first."""
    return tuple(end.described for end in sorted(ranks, key=_blame)[:SHOWN_RANKS])


def _last_words(output: bytes) -> tuple[tuple[str, ...], str]:
    """The end of a training's output, and the exception that it failed with, if any.

    Where a launcher reports that its script failed, the script's own exception counts, and the
    lines end with it: the launcher's traceback says nothing of the fault.
    """
    looked, shown = last_lines(output, LOOKED_LINES), last_lines(output)
    found = [
        (place, match) for place, line in enumerate(looked) if (match := EXCEPTION.match(line))
    ]
    begins = max((place for place, line in enumerate(looked) if BEGINS.match(line)), default=0)
    # long before the launcher's traceback it was caught, or has nothing to do with the end
    near = [pair for pair in found if pair[0] >= begins - NEAR_LINES]
    own = [pair for pair in near if not OF_NO_SCRIPT.match(pair[1]["name"])]
    if not own or own[-1] == found[-1]:
        # a launcher alone, or none at all; whatever else was told long before is no reason
        late = [match for place, match in found if place >= len(looked) - len(shown)]
        return shown, late[-1]["told"] if late else ""
    place, match = own[-1]
    return looked[max(0, place + 1 - len(shown)) : place + 1], match["told"]


def raised_at(lines: tuple[str, ...], workdir: Path) -> tuple[str, int]:
    """The innermost line below `workdir` of the last traceback, its file relative; else `("", 0)`.

    The training printed it, so it may be anything: a place to show, and never a path to open.
    """
    found = [match for match in map(FRAME.match, lines) if match is not None]
    for frame in reversed(found):
        # a script that is started by a relative name stands so in its own traceback
        file = frame["file"].removeprefix(f"{workdir}/")
        if not file.startswith(("/", "<")) and ".." not in file.split("/"):
            return file, int(frame["line"])
    return "", 0


def _how_it_ended(result: ProcessResult) -> str:
    exit_code = result.exit_code
    if result.out_of_memory:
        return "ran out of memory and was killed"
    return f"exited with {exit_code}" if exit_code >= 0 else f"was {ended_with(exit_code)}"


def _failure_hint(result: ProcessResult, request: ProcessRequest) -> str:
    """The most common causes, where the exit code or the output points at one, else nothing."""
    if result.out_of_memory:
        return (
            "It needed more memory than isolation.memory_bytes or the machine has: raise the limit."
        )
    if request.under_own_account and not request.network:
        cut_off = _hint_without_network(result, request)
        if cut_off:
            return cut_off
    if result.exit_code in SIGNAL_HINTS:
        return SIGNAL_HINTS[result.exit_code]
    if request.under_own_account and any(sign in result.output for sign in WRITING_SIGNS):
        return (
            "The training's account writes only in the checkout that it trains in, in its home and "
            "in $TMPDIR (tempfile.gettempdir() names it): use one of these for what it writes, and "
            "give every account read access to what it reads."
        )
    return next((hint for sign, hint in OUTPUT_HINTS.items() if sign in result.output), "")


def _hint_without_network(result: ProcessResult, request: ProcessRequest) -> str:
    """Ranks need loopback and downloads the network; both fail with words that name neither."""
    launcher = {Path(word).name for word in request.argv[:1]} & RANK_LAUNCHERS
    ranks = launcher or any(sign in result.output for sign in RANK_SIGNS)
    if ranks and not request.in_container:
        return (
            "Ranks communicate over loopback sockets, which the isolation blocks. Set "
            "isolation.network: true; the verdict then says so."
        )
    if any(sign in result.output for sign in CONNECTION_SIGNS):
        return (
            "The isolation blocks network connections: put the data into the repository or the "
            "image, or set isolation.network: true; the verdict then says so."
        )
    return ""
