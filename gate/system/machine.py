"""Find out what the machine has, without changing anything: GPUs, CPU cores, memory, network.

GPUs are only asked for through nvidia-smi and /proc, never through CUDA, which would start them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field

from gate.text.document import Document
from gate.text.untrusted_text import safe_line, without_sequences


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A GPU as its driver reports it.

    `compute_mode` is `Default` if several processes may use it. `mig` is true if it is split into
    slices (MIG).
    """

    uuid: str
    name: str
    driver: str
    compute_mode: str = ""
    mig: bool = False

    @property
    def shared(self) -> bool:
        """Whether a process may start on the GPU while another one uses it."""
        # An unknown mode counts as shared, because it must not cause a warning.
        return self.compute_mode in {"", "Default", "[N/A]"}


@dataclass(frozen=True, kw_only=True, slots=True)
class GpusSeen:
    """The GPUs that the gate's own process sees; `problem` says why nvidia-smi reports none.

    `kernel` has the names of the GPUs that the kernel's driver knows, whatever this container was
    given. `mps` is true if a Multi-Process Service shares GPUs among one account's processes.
    """

    gpus: tuple[Gpu, ...] = ()
    problem: str = ""
    kernel: tuple[str, ...] = ()
    mps: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all GPUs of the machine; empty without a GPU or without its driver."""
        return tuple(gpu.name for gpu in self.gpus) or self.kernel


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceFile:
    """A device file as the training sees it; `refusal` says why opening it failed, or is empty."""

    path: str
    mode: int
    gid: int
    refusal: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuTried:
    """What torch answered when it was asked for a GPU where trainings run.

    `built_for` is the CUDA version of torch's build, empty for a CPU build. `supports` is the
    newest CUDA version that the driver supports, as 1000 * major + 10 * minor, or 0 if unknown.
    `refusal` has torch's own words, and `hidden_by` a variable that hides every GPU.
    """

    built_for: str = ""
    supports: int = 0
    refusal: str = ""
    hidden_by: str = ""
    files: tuple[DeviceFile, ...] = ()


class GpuObstacle(StrEnum):
    """Why a training could not use a GPU of its machine."""

    CPU_BUILD = "cpu-build"
    HIDDEN = "hidden"
    NOT_GIVEN = "not-given"
    CLOSED = "closed"
    LOST = "lost"
    NO_UVM = "no-uvm"
    BUSY = "busy"
    OLD_DRIVER = "old-driver"
    NO_LIBRARY = "no-library"
    FABRIC = "fabric"
    NO_SLICE = "no-slice"
    OTHER = "other"


GIVE_ONE = "docs/gpu.md has six ways to give a container one."
MEANT = "Or set train.device to cpu, if you want a CPU."
# The fixes are here and not in the record: `found` may come from another job, but a fix that the
# gate recommends never does.
GPU_FIXES = {
    GpuObstacle.CPU_BUILD: "Install a build of torch for CUDA where the training runs.",
    GpuObstacle.HIDDEN: "Unset that variable, or let it name a GPU.",
    GpuObstacle.NOT_GIVEN: GIVE_ONE,
    GpuObstacle.CLOSED: "Let the gate be root: it gives the training's account the group of these "
    "files, unless that is root's or opens more than a GPU; without isolation put your own account "
    "into it. Or open them to all: NVreg_DeviceFileMode=0666 for the module nvidia.",
    GpuObstacle.LOST: "The container may not use it, often because it lost its devices while "
    "running: restart it.",
    GpuObstacle.NO_UVM: "As root on the machine: nvidia-modprobe -u -c 0, or start "
    "nvidia-persistenced; restart any container that is already running.",
    GpuObstacle.BUSY: "Another process has exclusive use of it: set its compute mode to default "
    "(nvidia-smi -c DEFAULT), or end MPS, which serves one account at a time.",
    GpuObstacle.OLD_DRIVER: "Update the machine's driver, or train with a torch that is built "
    "for an older CUDA; docs/gpu.md lists the minimum driver for each.",
    GpuObstacle.NO_LIBRARY: "The driver's library (libcuda.so.1) is missing where the training "
    "runs: set NVIDIA_DRIVER_CAPABILITIES to compute,utility for that container.",
    GpuObstacle.FABRIC: "Start nvidia-fabricmanager of the driver's own version on the machine.",
    GpuObstacle.NO_SLICE: "MIG is on, and the training was given no slice: make one (nvidia-smi "
    "mig -cgi ... -C), and name it by its UUID in isolation.gpus or NVIDIA_VISIBLE_DEVICES.",
    GpuObstacle.OTHER: "`repro-gate doctor` on that machine shows what its Python and nvidia-smi "
    f"report. {GIVE_ONE}",
}


class GpuMissed(Document):
    """A GPU that the training could not use; `found` says which one and what was seen."""

    obstacle: GpuObstacle
    found: str = Field(max_length=1000)

    @property
    def fix(self) -> str:
        """What to do about it, as sentences for a person."""
        return f"{GPU_FIXES[self.obstacle]} {MEANT}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """The resources that this process may use: core numbers, cores at a time, free bytes of memory.

    `cpu_quota` is less than the number of cores if a control group limits it.
    """

    cpus: tuple[int, ...]
    cpu_quota: int
    free_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSeen:
    """What the training's own Python reports about itself, where trainings run.

    `parts`, `packages` and `origins` are those of an environment, as a baseline has them. `gpus`
    are the devices that torch can use, by name and memory. `tried` is the result of asking torch
    for a GPU. `shm_bytes` is the size of /dev/shm there, or None if there is none. All of it is
    untrusted: printable and limited in size, but not verified.
    """

    parts: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    tried: GpuTried = field(default_factory=GpuTried)
    shm_bytes: int | None = None
    problem: str = ""
    hint: str = ""


ShortText = Annotated[str, Field(max_length=200)]
FactText = Annotated[str, Field(max_length=4000)]
FactMap = Annotated[dict[ShortText, FactText], Field(max_length=100)]
VariableMap = Annotated[dict[ShortText, ShortText], Field(max_length=200)]
TopologyLine = Annotated[str, Field(max_length=400)]


class RankFacts(Document):
    """What one rank's process reports: torch build, kernel, CPUs, memory, variables at its start.

    docs/harness-protocol.md defines the names.
    """

    rank: int = Field(ge=0, le=1_000_000)
    facts: FactMap = Field(default_factory=dict)
    variables: VariableMap = Field(default_factory=dict)


class GpuFacts(Document):
    """A GPU as nvidia-smi describes it; asking nvidia-smi does not start the GPU."""

    uuid: ShortText
    name: ShortText
    memory_total: ShortText
    driver_version: ShortText
    compute_mode: ShortText
    mig: ShortText
    ecc: ShortText


class MachineFacts(Document):
    """What the gate's own process sees of the machine.

    `topology` has the lines of `nvidia-smi topo -m`. `networks` maps network interfaces to their
    speed in Mbit/s, as far as the kernel knows it. `image` is the container engine's digest of the
    image of a container that the gate started. `problem` says why no GPU is listed.
    """

    gpus: Annotated[tuple[GpuFacts, ...], Field(max_length=64)] = ()
    topology: Annotated[tuple[TopologyLine, ...], Field(max_length=200)] = ()
    networks: Annotated[dict[ShortText, int], Field(max_length=100)] = Field(default_factory=dict)
    image: ShortText = ""
    problem: ShortText = ""


# `nvidia-smi --help-query-gpu` lists the fields
FACT_FIELDS = (
    *("uuid", "name", "memory.total", "driver_version", "compute_mode"),
    *("mig.mode.current", "ecc.mode.current"),
)
FACT_QUERY = (f"--query-gpu={','.join(FACT_FIELDS)}", "--format=csv,noheader")
TOPOLOGY = ("topo", "-m")
NETWORKS = Path("/sys/class/net")
ANSWER_SECONDS = 30.0
MAX_ANSWER_BYTES = 64 * 1024
MAX_LINES = 200
MAX_LINE = 400
MAX_GPUS = 64
MAX_NETWORKS = 100


def machine_facts(
    search_path: str, library_path: str = "", networks: Path = NETWORKS
) -> MachineFacts:
    """Return GPUs, their wiring and the network speeds; asking does not start a GPU."""
    program = shutil.which("nvidia-smi", path=search_path)
    speeds = _speeds(networks)
    if program is None:
        return MachineFacts(networks=speeds, problem="nvidia-smi was not found")
    # No other variable: nvidia-smi gets no secret of the gate.
    environment = {"PATH": search_path, "LC_ALL": "C"}
    if library_path:
        # on some hosts the driver's library is found only through this path
        environment["LD_LIBRARY_PATH"] = library_path
    listed = answer_lines((program, *FACT_QUERY), environment)
    gpus = tuple(filter(None, map(_gpu, listed)))[:MAX_GPUS]
    wiring = answer_lines((program, *TOPOLOGY), environment) if gpus else []
    return MachineFacts(
        gpus=gpus,
        topology=tuple(_line(line) for line in wiring[:MAX_LINES]),
        networks=speeds,
        problem="" if gpus else "nvidia-smi lists no GPU",
    )


def answer_lines(command: tuple[str, ...], environment: dict[str, str]) -> list[str]:
    """Return the lines that a program prints; none if it fails or does not answer in time."""
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=ANSWER_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    text = done.stdout[:MAX_ANSWER_BYTES].decode("utf-8", "replace")
    return text.splitlines() if done.returncode == 0 else []


def _gpu(line: str) -> GpuFacts | None:
    fields = [safe_line(field.strip(), limit=MAX_LINE // 2) for field in line.split(",")]
    if len(fields) != len(FACT_FIELDS):
        return None
    names = ("uuid", "name", "memory_total", "driver_version", "compute_mode", "mig", "ecc")
    return GpuFacts(**dict(zip(names, fields, strict=True)))


def _line(text: str) -> str:
    """Return one row of a table, with its columns kept apart and without ANSI underlining."""
    return safe_line("  ".join(without_sequences(text).split("\t")), limit=MAX_LINE)


def _speeds(networks: Path) -> dict[str, int]:
    """Map network interfaces to Mbit/s.

    An interface that is down, or has no speed, reports -1 or cannot be read, and is left out.
    """
    speeds: dict[str, int] = {}
    for path in sorted(networks.glob("*/speed"))[:MAX_NETWORKS]:
        with suppress(OSError, ValueError):
            speed = int(path.read_bytes()[:20])
            if speed > 0:
                speeds[safe_line(path.parent.name, limit=MAX_LINE // 2)] = speed
    return speeds


# `nvidia-smi --help-query-gpu` lists the fields. The driver or the container runtime installs the
# program.
FIELDS = ("uuid", "name", "driver_version", "compute_mode", "mig.mode.current")
QUERY = (f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")
PROC = Path("/proc")
# cgroup v2: quota and period in microseconds; the quota may be "max"
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
# The kernel cuts a program's name to fifteen characters (proc(5)): nvidia-cuda-mps-server.
MPS = b"nvidia-cuda-mps"
NAME_LIMIT = 100
_AVAILABLE = re.compile(rb"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)
_MODEL = re.compile(rb"^Model:\s*(.+)$", re.MULTILINE)
MAX_ANSWER_CHARACTERS = 64 * 1024
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F-]{8,60}")


def gpus_seen(search_path: str, library_path: str = "", proc: Path = PROC) -> GpusSeen:
    """Return the GPUs that nvidia-smi lists, and the ones that the kernel knows.

    A container without a GPU still sees the kernel's list, because /proc is the machine's.
    """
    listed = _listed(search_path, library_path)
    return replace(listed, kernel=_known_to_kernel(proc), mps=_mps_runs(proc))


def _known_to_kernel(proc: Path) -> tuple[str, ...]:
    names = []
    for about in sorted((proc / "driver/nvidia/gpus").glob("*/information")):
        with suppress(OSError):
            match = _MODEL.search(about.read_bytes()[:MAX_ANSWER_CHARACTERS])
            names.append(safe_line(match[1].strip(), limit=NAME_LIMIT) if match else "a GPU")
    return tuple(names)


def _mps_runs(proc: Path) -> bool:
    """Return whether NVIDIA's Multi-Process Service runs, as far as its process is visible."""
    for name in proc.glob("[0-9]*/comm"):
        with suppress(OSError):
            if name.read_bytes().startswith(MPS):
                return True
    return False


def _listed(search_path: str, library_path: str) -> GpusSeen:
    """Return what nvidia-smi lists; it runs in a child that inherits no variables but paths."""
    program = shutil.which("nvidia-smi", path=search_path)
    if program is None:
        return GpusSeen(problem="nvidia-smi was not found")
    # on some hosts the driver's library is found only through this path
    libraries = {"LD_LIBRARY_PATH": library_path} if library_path else {}
    try:
        done = subprocess.run(
            (program, *QUERY),
            env={"PATH": search_path, "LC_ALL": "C", **libraries},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=ANSWER_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return GpusSeen(problem=f"nvidia-smi did not answer ({type(error).__name__})")
    text = done.stdout[:MAX_ANSWER_CHARACTERS].decode("utf-8", "replace")
    if done.returncode != 0:
        last = (text.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return GpusSeen(problem=f"nvidia-smi: {safe_line(last)}")
    return parse_gpus(text)


def parse_gpus(text: str) -> GpusSeen:
    """Read the rows of nvidia-smi; a row that is not understood is a problem, never skipped."""
    gpus = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != len(FIELDS) or not _UUID.fullmatch(fields[0]):
            return GpusSeen(problem=f"nvidia-smi gave an unexpected answer: {safe_line(line)}")
        uuid, name, driver, compute_mode, mig = fields
        gpus.append(
            Gpu(
                uuid=uuid,
                name=safe_line(name),
                driver=safe_line(driver),
                compute_mode=safe_line(compute_mode),
                mig=mig == "Enabled",
            )
        )
    return GpusSeen(gpus=tuple(gpus), problem="" if gpus else "nvidia-smi lists no GPU")


def room(proc: Path = PROC, quota: Path = CPU_QUOTA) -> Room:
    """Return the cores and the memory that this process may use."""
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    available = _AVAILABLE.search(_read(proc / "meminfo"))
    free = int(available[1]) * 1024 if available else 0
    # cgroup v2 of a container: /proc/meminfo still shows the whole machine's memory
    limit, used = (_number(quota.with_name(name)) for name in ("memory.max", "memory.current"))
    if limit is not None and used is not None:
        free = min(free, max(0, limit - used))
    most, _, period = _read(quota).strip().partition(b" ")
    whole = int(most) // int(period) if most.isdigit() and period.isdigit() else len(cpus)
    return Room(cpus=cpus, cpu_quota=min(len(cpus), whole), free_bytes=free)


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> bytes:
    with suppress(OSError):
        return path.read_bytes()[:MAX_ANSWER_CHARACTERS]
    return b""


def free_bytes(folder: Path) -> int:
    """Return how many bytes may be written to the disk of a folder, which may not exist yet."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    state = os.statvfs(there)
    return state.f_bavail * state.f_frsize
