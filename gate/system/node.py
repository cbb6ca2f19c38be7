"""A node of a cluster: what its kernel and nvidia-smi say of its hardware."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gate.text.untrusted_text import safe_line

PROC: Final = Path("/proc")
SYS: Final = Path("/sys/class")
MAX_READ: Final = 256 * 1024
MAX_DEVICES: Final = 64
ANSWER_SECONDS: Final = 30.0
# `nvidia-smi --help-query-gpu` lists the fields
CLOCK_FIELDS: Final = (
    *("uuid", "compute_cap", "vbios_version", "clocks.sm", "clocks.mem"),
    "clocks_throttle_reasons.active",
)
_MODEL: Final = re.compile(rb"^model name\s*:\s*(.+)$", re.MULTILINE)
_MEMORY: Final = re.compile(rb"^MemTotal:\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeHardware:
    """Processor, cores, memory in bytes, RDMA devices with their link's state and speed."""

    cpu: str
    cpus: int
    memory_bytes: int
    rdma: tuple[str, ...]


def node_hardware(proc: Path = PROC, classes: Path = SYS) -> NodeHardware:
    """What the kernel says; a part that it does not tell is empty or 0."""
    model, memory = _MODEL.search(_read(proc / "cpuinfo")), _MEMORY.search(_read(proc / "meminfo"))
    return NodeHardware(
        cpu=safe_line(model[1].strip(), limit=200) if model else "",
        cpus=os.cpu_count() or 0,
        memory_bytes=int(memory[1]) * 1024 if memory else 0,
        rdma=tuple(_rdma(classes / "infiniband")),
    )


def _rdma(folder: Path) -> list[str]:
    """Such as `mlx5_0 port 1: 4: ACTIVE, 100 Gb/sec (4X EDR)`."""
    ports = sorted(folder.glob("*/ports/*"))[:MAX_DEVICES]
    return [
        safe_line(
            f"{port.parts[-3]} port {port.name}: {_text(port / 'state')}, {_text(port / 'rate')}",
            limit=200,
        )
        for port in ports
    ]


def gpu_clocks(search_path: str) -> tuple[str, ...]:
    """A line a GPU with the fields of `CLOCK_FIELDS`; none without nvidia-smi."""
    program = shutil.which("nvidia-smi", path=search_path)
    if program is None:
        return ()
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            (program, f"--query-gpu={','.join(CLOCK_FIELDS)}", "--format=csv,noheader"),
            env={"PATH": search_path, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=ANSWER_SECONDS,
        )
        if done.returncode == 0:
            lines = done.stdout[:MAX_READ].splitlines()
            return tuple(safe_line(line, limit=400) for line in lines[:MAX_DEVICES])
    return ()


def _text(path: Path) -> str:
    return _read(path).decode("utf-8", "replace").strip()


def _read(path: Path) -> bytes:
    with suppress(OSError), path.open("rb") as file:
        return file.read(MAX_READ)
    return b""
