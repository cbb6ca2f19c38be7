"""A node of a cluster: what its kernel and nvidia-smi say of its hardware."""

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
# as a document of the evidence takes it
MOST: Final = 2**63
# `nvidia-smi --help-query-gpu` lists the fields
CLOCK_FIELDS: Final = (
    *("uuid", "compute_cap", "vbios_version", "clocks.sm", "clocks.mem"),
    "clocks_throttle_reasons.active",
)
_MODEL: Final = re.compile(rb"^model name\s*:\s*(.+)$", re.MULTILINE)
_MEMORY: Final = re.compile(rb"^MemTotal:\s+(\d+) kB$", re.MULTILINE)


class NodeFacts(Document):
    """What a node is; decides nothing.

    `clocks` are graphics and memory clock and what slowed them (nvidia-smi), a line a GPU, after
    the run; `topology` is what `nvidia-smi topo -m` prints, `address` the node's place in Slurm's
    topology, `rdma` its devices (`/sys/class/infiniband`), `networks` the speed of each card in
    Mbit/s.
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
        """What the node is without its name, such as `4 x NVIDIA A10G` or `cpu`."""
        names = Counter(gpu.name for gpu in self.gpus)
        return " + ".join(f"{count} x {name}" for name, count in sorted(names.items())) or "cpu"

    @property
    def switches(self) -> str:
        """The switches above the node in Slurm's topology; empty where it has none."""
        return self.address.rpartition(".")[0]


def described_nodes(nodes: Sequence[NodeFacts]) -> str:
    """What a result may hang on of the nodes, and never their names.

    For example `2 nodes of 4 x NVIDIA A10G, one switch, 100 Gb/s`. Empty for none.
    """
    if not nodes:
        return ""
    kinds = Counter(node.kind for node in nodes)
    # a node's name is the last part of its address, and the switches before it have names as well
    above = {node.switches for node in nodes}
    wires = "" if not any(above) else f", {'one switch' if len(above) == 1 else 'several switches'}"
    # the fastest card is the one that ranks are meant to use
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
    """Processor, cores, memory in bytes, RDMA devices with their link's state and speed.

    `networks` has the speed of each network card in Mbit/s. What is no hardware, such as a
    container's end of a cable, comes and goes, and is left out.
    """

    cpu: str
    cpus: int
    memory_bytes: int
    rdma: tuple[str, ...]
    networks: dict[str, int]


def node_hardware(proc: Path = PROC, classes: Path = SYS) -> NodeHardware:
    """What the kernel says; a part that it does not tell is empty or 0."""
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
        # one that is down says -1, or nothing
        speed = _text(card.with_name("speed"))
        if speed.isascii() and speed.isdecimal():
            yield safe_line(card.parent.name, limit=200), int(speed[:10])


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
    query = (program, f"--query-gpu={','.join(CLOCK_FIELDS)}", "--format=csv,noheader")
    lines = answer_lines(query, {"PATH": search_path, "LC_ALL": "C"})
    return tuple(safe_line(line, limit=400) for line in lines[:MAX_DEVICES])


def _text(path: Path) -> str:
    return _read(path).decode("utf-8", "replace").strip()


def _read(path: Path) -> bytes:
    with suppress(OSError), path.open("rb") as file:
        return file.read(MAX_READ)
    return b""
