"""Chooses how a gate call isolates its trainings, tries it, and cleans up afterwards."""

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

# an image has one of the two, because the harness needs Python
INTERPRETERS = ("python3", "python")
COMMAND_NOT_FOUND = 127
PROBE_SECONDS = 60.0
DATA_SHARED = "declared data is mounted in every container"
PROBE_OUTPUT_BYTES = 4096
# `has` are groups the process has because they own GPU device files, `wants` those it would need
PROBE_ANSWER = re.compile(rb"isolated(?: groups (?P<has>[\d ]+))?(?: wants (?P<wants>[\d ]+))?")
# This program looks from inside the container: an engine does not always do what it was asked.
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
    """What the choice of a container needs.

    `processes` starts containers, and `run` is the label of this call.
    """

    engine: Engine
    processes: Processes
    run: str

    def choose(self, settings: GateSettings, folders: Sequence[Path]) -> Isolation:
        """Return the isolation in a container that was tried and found closed.

        `folders` must be listable in it. With device auto and no GPUs in the settings, all GPUs are
        asked for. If the engine has none to give, the container gets none, and the result contains
        the reason. Raises `RunError` if there is no engine or no such image, or if the trial fails.
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
        """Try one container, then one in the groups that own the GPU device files if necessary."""
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
        """Return the device file groups that a process in the container has and lacks.

        Raises `RunError` if the probe found a fault.
        """
        for interpreter in INTERPRETERS:
            argv = (interpreter, "-I", "-c", PROBE, *arguments)
            result = self.processes.run(replace(probe, argv=argv), lambda _: None)
            # this interpreter exists, so the other one would find the same
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
    """Return the GPUs that the settings name, or all of them unless a CPU is asked for."""
    if settings.isolation.gpus or settings.train.device is Device.CPU:
        return settings.isolation.gpus
    return (ALL_GPUS,)


def _arguments(account: Credentials, folders: Sequence[Path], *, network: bool) -> tuple[str, ...]:
    """Return the probe's arguments: its ids, the network, and the owner of each folder."""
    owned = (f"{folder}={os.lstat(folder).st_uid}" for folder in folders)
    return (str(account.uid), str(account.gid), "any" if network else "none", *owned)


def on_cluster(settings: GateSettings) -> Isolation:
    """Return the isolation of runs on a cluster's nodes.

    Raises `RunError` if the settings demand more than a job can give.
    """
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
    """Return why no container is tried, or an empty text if one must be.

    Once a container is tried, its faults are errors.
    """
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
    """Return what each container has for itself; two containers share the inodes of a mount."""
    lacks = {Separation.CACHE}
    if settings.isolation.network:
        lacks.add(Separation.NETWORK)
    # a run gets a copy of data from Git LFS, not a mount
    mounted = any(source.lfs is None for source in settings.data)
    if mounted or settings.preprocess is not None:
        lacks.add(Separation.FILES)
    return tuple(separation for separation in Separation if separation not in lacks)


def _account() -> Credentials:
    """Return a separate account if the gate may give files away, else the gate's own.

    The id belongs to the engine's machine, so an id that owns nothing there is better. A gate that
    is not root cannot give files away. In another container a process with the gate's id can reach
    only the folders that are mounted there.
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
    """The isolation of one gate call.

    `run` marks the containers of the call, and `processes` starts processes under any isolation.
    """

    def __init__(
        self,
        engine: Engine,
        interrupts: StopSignals,
        interpreter: str,
        socket: str = "",
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Try nothing yet; `interpreter` is the Python that trains outside containers.

        `socket` is the path of the engine's socket, or empty. `variables` are the gate's own; a
        cluster's programs get a few of them.
        """
        beside = ContainerProcesses(engine, this_process(), interrupts)
        # the label by which a post step finds the containers of this call, and of no other
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
        """Return the isolation that the settings ask for, tried; `auto` takes the strongest.

        Until `release`, no other gate of this machine uses its account. Raises `RunError` if the
        isolation asked for is not possible.
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
        """Return the isolation of the reader of these runs: a separate account until `release`.

        If the trainings have no account of their own, the reader gets none either. Clean it up like
        a training's. Raises `RunError` if every account is in use.
        """
        account = isolation.credentials
        # without root nothing can start under another account; the first question then reports the
        # fault
        if account is None or os.geteuid() != 0:
            return isolation
        reader = unused_account()
        if reader is None:
            raise RunError(
                "every account for trainings is in use on this machine",
                hint="Wait for the other gates to end, or stop leftover training processes.",
            )
        self._accounts.append(reader.uid)
        # without groups: a reader needs no GPU
        reading = replace(account, uid=reader.uid, gid=reader.gid, groups=())
        return replace(isolation, credentials=reading, container=None)

    def beside(self, isolation: Isolation, number: int) -> tuple[Credentials | None, ...]:
        """Return accounts for up to `number` runs beside one of this isolation, until `release`.

        An item is None if the training has the gate's own account. Raises `RunError` with the
        reason if no run can go beside another.
        """
        accounts = accounts_beside(isolation, self.processes, self._interpreter, number)
        if not isolation.in_container:
            self._accounts += [account.uid for account in accounts if account is not None]
        return accounts

    def clean_up(self, isolation: Isolation) -> None:
        """End all that a training may have left running: its containers or its processes."""
        for mark in isolation.marked_containers:
            self._engine.remove_run(mark)
        if not isolation.in_container:
            end_account(isolation)

    def release(self) -> None:
        """Give the accounts and nodes back; call it only after nothing of the trainings is left."""
        try:
            self.cluster.release()
        finally:
            while self._accounts:
                release_uid(self._accounts.pop())


def end_account(isolation: Isolation) -> None:
    """End every process of the training's account, then remove what it left outside its folders.

    Without a separate account, its processes and files cannot be told from the gate's.
    """
    for account in isolation.own_accounts:
        kill_account(account)
        remove_residue(account)
