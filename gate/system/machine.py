"""What the machine has, asked without changing anything: GPUs, free room."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gate.system.gpu import Gpu, GpusSeen
from gate.system.room import Room
from gate.text.untrusted_text import safe_line

# `nvidia-smi --help-query-gpu` lists the fields; driver or container runtime bring the tool
FIELDS = ("uuid", "name", "driver_version", "compute_mode", "mig.mode.current", "memory.free")
QUERY = (f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")
PROC = Path("/proc")
# quota and period in microseconds, or "max" (cgroup v2)
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
MIB = 1024**2
# the kernel keeps fifteen characters of a program's name
MPS = b"nvidia-cuda-mps"
NAME_LIMIT = 100
_AVAILABLE = re.compile(rb"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)
_MODEL = re.compile(rb"^Model:\s*(.+)$", re.MULTILINE)
ANSWER_SECONDS = 30.0
MAX_ANSWER_CHARACTERS = 64 * 1024
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F-]{8,60}")


def gpus_seen(search_path: str, library_path: str = "", proc: Path = PROC) -> GpusSeen:
    """The GPUs of this machine: those that nvidia-smi lists, and those that the kernel knows.

    A container that was given none still shows the latter, since /proc is the machine's.
    """
    listed = _listed(search_path, library_path)
    return replace(listed, kernel=_known_to_kernel(proc), mps=_mps_runs(proc))


def _known_to_kernel(proc: Path) -> tuple[str, ...]:
    names = []
    for about in sorted((proc / "driver/nvidia/gpus").glob("*/information")):
        with suppress(OSError):
            found = _MODEL.search(about.read_bytes()[:MAX_ANSWER_CHARACTERS])
            names.append(safe_line(found[1].strip(), limit=NAME_LIMIT) if found else "a GPU")
    return tuple(names)


def _mps_runs(proc: Path) -> bool:
    """Whether NVIDIA's server for several processes runs, as far as its process can be seen."""
    for name in proc.glob("[0-9]*/comm"):
        with suppress(OSError):
            if name.read_bytes().startswith(MPS):
                return True
    return False


def _listed(search_path: str, library_path: str) -> GpusSeen:
    """What nvidia-smi answers as a child of its own that holds no variable of ours but paths."""
    program = shutil.which("nvidia-smi", path=search_path)
    if program is None:
        return GpusSeen(problem="nvidia-smi was not found")
    # on some hosts the driver's library is found by this path alone
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
    """The rows of nvidia-smi's answer; one that is not understood is a problem, never skipped."""
    gpus = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != len(FIELDS) or not _UUID.fullmatch(fields[0]):
            return GpusSeen(problem=f"nvidia-smi gave an unexpected answer: {safe_line(line)}")
        uuid, name, driver, compute_mode, mig, free = fields
        gpus.append(
            Gpu(
                uuid=uuid,
                name=safe_line(name),
                driver=safe_line(driver),
                compute_mode=safe_line(compute_mode),
                mig=mig == "Enabled",
                # "[N/A]" where it is not told
                free_bytes=int(free) * MIB if free.isascii() and free.isdigit() else 0,
            )
        )
    return GpusSeen(gpus=tuple(gpus), problem="" if gpus else "nvidia-smi lists no GPU")


def room(proc: Path = PROC, quota: Path = CPU_QUOTA) -> Room:
    """Cores and memory that this process may use."""
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    available = _AVAILABLE.search(_read(proc / "meminfo"))
    free = int(available[1]) * 1024 if available else 0
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
    """Bytes that may be written where a folder is, or will be."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    state = os.statvfs(there)
    return state.f_bavail * state.f_frsize
