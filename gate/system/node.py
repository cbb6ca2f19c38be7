"""Describe a node of a cluster by what its kernel and nvidia-smi report about its hardware."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from gate.system.machine import GpuFacts, ShortText, TopologyLine, answer_lines
from gate.text.document import Document
from gate.text.untrusted_text import safe_line

PROC: Final = Path("/proc")
SYS: Final = Path("/sys/class")
MAX_READ: Final = 256 * 1024
MAX_DEVICES: Final = 64
# the largest integer that the evidence's document accepts
MOST: Final = 2**63
# `nvidia-smi --help-query-gpu` lists the fields
CLOCK_FIELDS: Final = (
    *("uuid", "compute_cap", "vbios_version", "clocks.sm", "clocks.mem"),
    "clocks_throttle_reasons.active",
)
_MODEL: Final = re.compile(rb"^model name\s*:\s*(.+)$", re.MULTILINE)
_MEMORY: Final = re.compile(rb"^MemTotal:\s+(\d+) kB$", re.MULTILINE)


class NodeFacts(Document):
    """The hardware of a node; informational.

    `clocks` has one line for each GPU, after the run: graphics clock, memory clock, and what slowed
    them down (nvidia-smi). `topology` has the lines of `nvidia-smi topo -m`. `address` is the
    node's place in Slurm's topology. `rdma` lists its RDMA devices (`/sys/class/infiniband`), and
    `networks` the speed of each network card in Mbit/s.
    """

    name: ShortText
    cpu: ShortText = ""
    cpus: int = Field(default=0, ge=0, le=MOST)
    memory_bytes: int = Field(default=0, ge=0, le=MOST)
    kernel: ShortText = ""
    driver: ShortText = ""
    gpus: Annotated[tuple[GpuFacts, ...], Field(max_length=64)] = ()
    clocks: Annotated[tuple[TopologyLine, ...], Field(max_length=64)] = ()
    topology: Annotated[tuple[TopologyLine, ...], Field(max_length=200)] = ()
    networks: Annotated[dict[ShortText, int], Field(max_length=100)] = Field(default_factory=dict)
    rdma: Annotated[tuple[ShortText, ...], Field(max_length=64)] = ()
    address: ShortText = ""

    @property
    def kind(self) -> str:
        """The kind of node without its name, such as `4 x NVIDIA A10G` or `cpu`."""
        names = Counter(gpu.name for gpu in self.gpus)
        return " + ".join(f"{count} x {name}" for name, count in sorted(names.items())) or "cpu"

    @property
    def switches(self) -> str:
        """The switches above the node in Slurm's topology; empty without such a topology."""
        return self.address.rpartition(".")[0]


def described_nodes(nodes: Sequence[NodeFacts]) -> str:
    """Describe the nodes by what may affect a result, and without their names.

    For example `2 nodes of 4 x NVIDIA A10G, one switch, 100 Gb/s`. Empty for no nodes.
    """
    if not nodes:
        return ""
    kinds = Counter(node.kind for node in nodes)
    # An address is switches and the node's name, separated by dots. All of them are names, so only
    # their number is shown.
    above = {node.switches for node in nodes}
    wires = "" if not any(above) else f", {'one switch' if len(above) == 1 else 'several switches'}"
    # Ranks are meant to use the fastest card of their node.
    fastest = {max(node.networks.values(), default=0) for node in nodes}
    speed = f", {min(fastest) / 1000:g} Gb/s" if min(fastest) else ""
    return (
        " + ".join(
            f"{count} node{'s' * (count > 1)} of {kind}" for kind, count in sorted(kinds.items())
        )
        + wires
        + speed
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeHardware:
    """Processor, cores, memory in bytes, and RDMA devices with state and speed of their links.

    `networks` maps network cards to Mbit/s. Virtual interfaces, such as a container's end of a
    cable, come and go, so they are left out.
    """

    cpu: str
    cpus: int
    memory_bytes: int
    rdma: tuple[str, ...]
    networks: dict[str, int]


def node_hardware(proc: Path = PROC, classes: Path = SYS) -> NodeHardware:
    """Return what the kernel reports; an unknown part is empty or 0."""
    model, memory = _MODEL.search(_read(proc / "cpuinfo")), _MEMORY.search(_read(proc / "meminfo"))
    return NodeHardware(
        cpu=safe_line(model[1].strip(), limit=200) if model else "",
        cpus=os.cpu_count() or 0,
        memory_bytes=int(memory[1]) * 1024 if memory else 0,
        rdma=tuple(_rdma(classes / "infiniband")),
        networks=dict(_networks(classes / "net")),
    )


def _networks(folder: Path) -> Iterator[tuple[str, int]]:
    for card in sorted(folder.glob("*/device"))[:MAX_DEVICES]:
        # a card that is down reports -1, or nothing
        speed = _text(card.with_name("speed"))
        if speed.isascii() and speed.isdecimal():
            yield safe_line(card.parent.name, limit=200), int(speed[:10])


def _rdma(folder: Path) -> list[str]:
    """Return lines such as `mlx5_0 port 1: 4: ACTIVE, 100 Gb/sec (4X EDR)`."""
    ports = sorted(folder.glob("*/ports/*"))[:MAX_DEVICES]
    return [
        safe_line(
            f"{port.parts[-3]} port {port.name}: {_text(port / 'state')}, {_text(port / 'rate')}",
            limit=200,
        )
        for port in ports
    ]


def gpu_clocks(search_path: str) -> tuple[str, ...]:
    """Return one line for each GPU with the values of `CLOCK_FIELDS`; none without nvidia-smi."""
    program = shutil.which("nvidia-smi", path=search_path)
    if program is None:
        return ()
    query = (program, f"--query-gpu={','.join(CLOCK_FIELDS)}", "--format=csv,noheader")
    lines = answer_lines(query, {"PATH": search_path, "LC_ALL": "C"})
    return tuple(safe_line(line, limit=400) for line in lines[:MAX_DEVICES])


def _text(path: Path) -> str:
    return _read(path).decode("utf-8", "replace").strip()


def _read(path: Path) -> bytes:
    with suppress(OSError), path.open("rb") as file:
        return file.read(MAX_READ)
    return b""
