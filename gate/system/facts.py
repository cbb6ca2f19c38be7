"""Facts about where a training ran that are told and decide nothing: a kernel changes weekly."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gate.text.records_document import Document

ShortText = Annotated[str, Field(max_length=200)]
FactText = Annotated[str, Field(max_length=4000)]
FactMap = Annotated[dict[ShortText, FactText], Field(max_length=100)]
VariableMap = Annotated[dict[ShortText, ShortText], Field(max_length=200)]
TopologyLine = Annotated[str, Field(max_length=400)]


class RankFacts(Document):
    """What one rank's process says: build of torch, kernel, CPUs, memory, variables at its start.

    The words are those of docs/harness-protocol.md.
    """

    rank: int = Field(ge=0, le=1_000_000)
    facts: FactMap = Field(default_factory=dict)
    variables: VariableMap = Field(default_factory=dict)


class GpuFacts(Document):
    """A GPU in the words of nvidia-smi, which starts no GPU."""

    uuid: ShortText
    name: ShortText
    memory_total: ShortText
    driver_version: ShortText
    compute_mode: ShortText
    mig: ShortText
    ecc: ShortText


class MachineFacts(Document):
    """What the gate's own process sees of the machine.

    `topology` is what `nvidia-smi topo -m` prints, line by line; `networks` has the speed of each
    network interface in Mbit/s, where the kernel knows one; `image` is the engine's digest of the
    image of a container that the gate started. `problem` says why there are no GPUs here.
    """

    gpus: Annotated[tuple[GpuFacts, ...], Field(max_length=64)] = ()
    topology: Annotated[tuple[TopologyLine, ...], Field(max_length=200)] = ()
    networks: Annotated[dict[ShortText, int], Field(max_length=100)] = Field(default_factory=dict)
    image: ShortText = ""
    problem: ShortText = ""
