"""How a call isolates its trainings: the choice, tried, and the clean-up."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from gate.errors import RunError
from gate.isolation.account_choice import (
    accounts_beside,
    choose_isolation,
    gpu_file_groups,
    make_device_files,
    unused_account,
)
from gate.isolation.accounts import release_uid, remove_residue
from gate.isolation.answering_client import LocalAnsweringProcess
from gate.isolation.cluster_processes import Cluster, ClusterProcesses
from gate.isolation.container_config import this_process
from gate.isolation.containers import ContainerProcesses, RoutedProcesses
from gate.isolation.engine import Engine
from gate.isolation.modes import (
    ALL_GPUS,
    Credentials,
    Isolation,
    IsolationMode,
    IsolationSettings,
    JobIsolation,
    Separation,
    TrainingContainer,
)
from gate.isolation.process_request import Processes, ProcessRequest
from gate.isolation.process_table import kill_account
from gate.isolation.processes import LocalProcesses
from gate.isolation.stop_signals import StopSignals
from gate.settings.gate_settings import Device, GateSettings
from gate.text.untrusted_text import safe_line

# an image has one of the two, and the harness needs it
INTERPRETERS = ("python3", "python")
COMMAND_NOT_FOUND = 127
PROBE_SECONDS = 60.0
DATA_SHARED = "declared data is mounted in every container"
PROBE_OUTPUT_BYTES = 4096
# the groups that it has because they own GPUs' device files, and those that would open them
PROBE_ANSWER = re.compile(rb"isolated(?: groups (?P<has>[\d ]+))?(?: wants (?P<wants>[\d ]+))?")
# Looks from the inside: what an engine was asked for is not always what it did.
PROBE = r"""
import glob, os, re, socket, stat, sys
uid, gid, network, *folders = sys.argv[1:]
owners, wants, opened = set(), set(), r"/dev/nvidia(ctl|-uvm|-uvm-tools|\d+)"
for path in glob.glob("/dev/nvidia*"):
    facts = os.stat(path)
    if re.fullmatch(opened, path) and stat.S_ISCHR(facts.st_mode) and facts.st_gid:
        owners.add(facts.st_gid)
        if not os.access(path, os.R_OK | os.W_OK) and facts.st_mode & 0o60 == 0o60:
            wants.add(facts.st_gid)
groups = {*os.getgroups()} - {int(gid)}
status = dict(line.rstrip("\n").split(":\t", 1) for line in open("/proc/self/status"))
faults = []
if {*os.getresuid()} != {int(uid)} or {*os.getresgid()} != {int(gid)} or groups - owners:
    faults.append(f"its ids are {os.getresuid()}, {os.getresgid()}, {os.getgroups()}")
if status["NoNewPrivs"] != "1" or int(status["CapEff"], 16) or int(status["CapBnd"], 16):
    faults.append("it has privileges, or could gain them")
if not os.statvfs("/").f_flag & os.ST_RDONLY:
    faults.append("its root file system is writable")
others = [name for _, name in socket.if_nameindex() if name != "lo"]
if network == "none" and others:
    faults.append(f"it has the network {others}")
if os.path.exists("/var/run/docker.sock"):
    faults.append("the engine's socket is mounted in it")
for folder in folders:
    name, _, owner = folder.rpartition("=")
    os.listdir(name)
    if os.stat(name).st_uid != int(owner):
        faults.append(f"user ids are mapped: {owner} is {os.stat(name).st_uid} inside")
def told(word, ids): return f" {word} " + " ".join(map(str, sorted(ids))) if ids else ""
print("; ".join(faults) or "isolated" + told("groups", groups) + told("wants", wants))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerChooser:
    """What the choice needs: an engine, a runner of containers, and the label of this call."""

    engine: Engine
    processes: Processes
    run: str

    def choose(self, settings: GateSettings, folders: Sequence[Path]) -> Isolation:
        """A container that was tried and found closed; `folders` must be listable in it.

        Where GPUs are neither demanded nor refused, all are asked for, and none is taken when the
        engine has none to give: why is in the answer. Raises `RunError` when there is no engine
        or no such image, or when the trial failed.
        """
        image_id = self.engine.image_id(settings.isolation.image or "")
        account = _account()
        try:
            return self._try(settings, folders, image_id, account, _gpus(settings))
        except RunError as refusal:
            if settings.train.device is not Device.AUTO or settings.isolation.gpus:
                release_uid(account.uid)
                raise
            without = self._without_gpu(settings, folders, image_id, account)
            return replace(without, gpu_refusal=refusal.message)

    def _without_gpu(
        self, settings: GateSettings, folders: Sequence[Path], image_id: str, account: Credentials
    ) -> Isolation:
        try:
            return self._try(settings, folders, image_id, account, ())
        except RunError:
            release_uid(account.uid)
            raise

    def _try(
        self,
        settings: GateSettings,
        folders: Sequence[Path],
        image_id: str,
        account: Credentials,
        gpus: tuple[str, ...],
    ) -> Isolation:
        """One container, and another in the groups that own its GPUs' device files, if need be."""
        asked = settings.isolation
        container = TrainingContainer(image_id=image_id, run=self.run, limits=asked, gpus=gpus)
        probe = ProcessRequest(
            argv=(),
            env={"LC_ALL": "C.UTF-8"},
            workdir=Path("/"),
            timeout_seconds=PROBE_SECONDS,
            output_limit_bytes=PROBE_OUTPUT_BYTES,
            credentials=account,
            network=asked.network,
            container=container,
            readable=tuple(folders),
        )
        arguments = _arguments(account, folders, network=asked.network)
        has, wants = self._groups(probe, arguments)
        if wants:
            account = replace(account, groups=wants)
            has, _ = self._groups(replace(probe, credentials=account), arguments)
        return Isolation(
            mode=IsolationMode.CONTAINER,
            credentials=account,
            reason="the training runs in a separate container",
            network=asked.network,
            container=container,
            device_groups=has,
            own=_own(settings),
            shares="" if Separation.FILES in _own(settings) else DATA_SHARED,
        )

    def _groups(
        self, probe: ProcessRequest, arguments: tuple[str, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The groups of device files that a process in it has, and that it lacks.

        Raises `RunError` when it did not find all as it must be.
        """
        for interpreter in INTERPRETERS:
            argv = (interpreter, "-I", "-c", PROBE, *arguments)
            result = self.processes.run(replace(probe, argv=argv), lambda _: None)
            # this interpreter is there; whatever else is wrong, the other one would say the same
            if result.exit_code != COMMAND_NOT_FOUND:
                break
        answer = PROBE_ANSWER.fullmatch(result.output.strip())
        if result.exit_code == 0 and answer:
            return _numbers(answer["has"]), _numbers(answer["wants"])
        obstacle = (
            f"timed out after {PROBE_SECONDS:g} s"
            if result.timed_out
            else safe_line((result.output.strip().splitlines() or [b"no answer"])[-1])
        )
        raise RunError(
            f"the training's container is not isolated: {obstacle}",
            hint="The image must have Python, and the engine must run without user namespaces "
            "(neither rootless nor userns-remap); isolation.mode uid needs neither.",
        )


def _numbers(text: bytes | None) -> tuple[int, ...]:
    return tuple(sorted({int(word) for word in (text or b"").split()}))


def _gpus(settings: GateSettings) -> tuple[str, ...]:
    """Those that are named, else all of them unless a CPU is asked for."""
    if settings.isolation.gpus or settings.train.device is Device.CPU:
        return settings.isolation.gpus
    return (ALL_GPUS,)


def _arguments(account: Credentials, folders: Sequence[Path], *, network: bool) -> tuple[str, ...]:
    """What the probe is told: who it should be, whether alone, and who owns what it will see."""
    owned = (f"{folder}={os.lstat(folder).st_uid}" for folder in folders)
    return (str(account.uid), str(account.gid), "any" if network else "none", *owned)


def on_cluster(settings: GateSettings) -> Isolation:
    """What keeps runs on the nodes apart from the gate; `RunError` where more is asked for."""
    asked = settings.isolation
    if asked.minimum.strength > IsolationMode.NONE.strength:
        raise RunError(
            f"isolation.minimum is {asked.minimum.value}, and a job on the cluster runs as the "
            "user who submitted it",
            hint="Set isolation.minimum to none where that is enough: no key and no token is in "
            "the job, but its code can read what that user can. Or set cluster.engine to local.",
        )
    return Isolation(
        mode=IsolationMode.NONE,
        credentials=None,
        reason="runs go to the nodes of a cluster, as steps of a job of this account; nothing of "
        "the gate but its list of variables goes with them",
        network=True,
        job=JobIsolation.USER,
        other_nodes=settings.cluster.allocations > 1,
    )


def no_container(asked: IsolationSettings, engine: Engine) -> str:
    """Why no container is to be tried; empty when one is, and then its faults count."""
    if asked.mode is IsolationMode.CONTAINER:
        return ""
    if asked.mode is not IsolationMode.AUTO:
        return f"isolation.mode is {asked.mode.value}"
    if asked.image is None:
        return "isolation.image is not set"
    try:
        engine.answer()
    except RunError as error:
        return error.message
    return ""


def _own(settings: GateSettings) -> tuple[Separation, ...]:
    """What a container has of its own; what is mounted in two of them has one set of inodes."""
    lacks = {Separation.CACHE}
    if settings.isolation.network:
        lacks.add(Separation.NETWORK)
    # each run gets a copy of what Git LFS keeps
    mounted = any(source.lfs is None for source in settings.data)
    if mounted or settings.preprocess is not None:
        lacks.add(Separation.FILES)
    return tuple(separation for separation in Separation if separation not in lacks)


def _account() -> Credentials:
    """Another account where the gate may give files to it; the gate's own where it may not.

    An account is the engine machine's own, so an id that owns nothing there is the better one. A
    gate that is not root has files of its own account only, and a process in another container
    with that id can reach nothing but the folders mounted there.
    """
    if os.geteuid() != 0:
        return Credentials(uid=os.geteuid(), gid=os.getegid())
    account = unused_account()
    if account is None:
        raise RunError(
            "every account for trainings is in use on this machine",
            hint="Wait for the other gates to end, or stop leftover training processes.",
        )
    return account


class Isolating:
    """`run` marks the containers of this call; `processes` starts what any isolation asks for."""

    def __init__(
        self,
        engine: Engine,
        interrupts: StopSignals,
        interpreter: str,
        socket: str = "",
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`interpreter` is the Python that trains where no container does; nothing is tried yet.

        `socket` is the path of the engine's, or empty. `variables` are the gate's own, of which a
        cluster's programs get a few.
        """
        beside = ContainerProcesses(engine, this_process(), interrupts)
        # the label by which a post step finds these containers again, and no other call's
        self.run = secrets.token_hex(8)
        self.cluster = Cluster(self.run, variables, interrupts)
        nodes = ClusterProcesses(self.cluster, interrupts)
        self.processes = RoutedProcesses(LocalProcesses(interrupts), beside, interrupts, nodes)
        self._interrupts = interrupts
        self._engine = engine
        self._socket = socket
        self.device_groups: tuple[int, ...] = ()
        self._interpreter = interpreter
        self._accounts: list[int] = []
        self._chooser = ContainerChooser(engine=engine, processes=beside, run=self.run)

    def choose(self, settings: GateSettings, folders: Sequence[Path]) -> Isolation:
        """The isolation that the settings ask for, tried; `auto` takes the strongest there is.

        No other gate of this machine has its account before `release`. Raises `RunError` when what
        was asked for cannot be had.
        """
        isolation = self._chosen(settings, folders)
        self._accounts += [account.uid for account in isolation.own_accounts]
        self.device_groups = isolation.device_groups
        return isolation

    def _chosen(self, settings: GateSettings, folders: Sequence[Path]) -> Isolation:
        asked = settings.isolation
        if settings.cluster.on_nodes:
            self.cluster.choose(settings.cluster)
            return on_cluster(settings)
        why_no_container = no_container(asked, self._engine)
        if not why_no_container:
            return self._chooser.choose(settings, folders)
        groups: tuple[int, ...] = ()
        if settings.train.device is not Device.CPU:
            make_device_files()
            groups = gpu_file_groups(socket=self._socket)
        isolation = choose_isolation(asked, self.processes, self._interpreter, folders, groups)
        if asked.mode is not IsolationMode.AUTO or asked.image is None:
            return isolation
        return replace(
            isolation, reason=f"{isolation.reason}; not in isolation.image: {why_no_container}"
        )

    def answering(self, request: ProcessRequest) -> LocalAnsweringProcess:
        """Start a process of this machine that answers questions."""
        return LocalAnsweringProcess(request, self._interrupts)

    def for_reading(self, isolation: Isolation) -> Isolation:
        """What reads beside trainings that are isolated so: another account, held until `release`.

        Without an account of their own it is the gate's as well. It is to be cleaned up as a
        training's is. Raises `RunError` when every account is in
        use.
        """
        account = isolation.credentials
        # without root nothing can be started under another account: the first question reports it
        if account is None or os.geteuid() != 0:
            return isolation
        reader = unused_account()
        if reader is None:
            raise RunError(
                "every account for trainings is in use on this machine",
                hint="Wait for the other gates to end, or stop leftover training processes.",
            )
        self._accounts.append(reader.uid)
        reading = replace(account, uid=reader.uid, gid=reader.gid, groups=())
        return replace(isolation, credentials=reading, container=None)

    def beside(self, isolation: Isolation, number: int) -> tuple[Credentials | None, ...]:
        """So many accounts for runs beside one of this isolation, or fewer, held until `release`.

        None where the training has the gate's own. Raises `RunError` that says why no run can go
        beside another.
        """
        accounts = accounts_beside(isolation, self.processes, self._interpreter, number)
        if not isolation.in_container:
            self._accounts += [account.uid for account in accounts if account is not None]
        return accounts

    def clean_up(self, isolation: Isolation) -> None:
        """End all that a training may have left running: its containers, or its account's."""
        for mark in isolation.marked_containers:
            self._engine.remove_run(mark)
        if not isolation.in_container:
            end_account(isolation)

    def release(self) -> None:
        """Let other gates have the accounts; only when nothing of the trainings is left."""
        try:
            self.cluster.release()
        finally:
            while self._accounts:
                release_uid(self._accounts.pop())


def end_account(isolation: Isolation) -> None:
    """End every process of the training's account, then remove what it left outside its folders.

    Without an account of its own there is neither to tell from the gate's.
    """
    for account in isolation.own_accounts:
        kill_account(account)
        remove_residue(account)
