"""The document `cluster.json`: on what kind of machine a commit was trained, for a person.

It is made from the evidence and read by nobody who judges.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Final, Literal

from pydantic import Field

from gate.evidence.memory import MAX_BYTES
from gate.evidence.run_evidence import DeviceFacts, EvidenceSet, RunEvidence
from gate.system.facts import FactText, ShortText, TopologyLine, VariableMap
from gate.text.records_document import Document, Timestamp
from gate.training.environment import NOT_APPLICABLE

CLUSTER_SCHEMA: Final = "repro-gate.cluster/1"
CLUSTER_NAME: Final = "cluster.json"
# the variables that choose how ranks talk to each other
TRANSPORT: Final = ("NCCL_", "GLOO_")


class Accelerator(Document):
    """Equal GPUs that a rank of the training held memory on, and how many of them.

    `revision` is the compute capability, `slice` the profile of a part of a GPU (MIG).
    """

    name: ShortText
    revision: ShortText
    memory_bytes: int = Field(ge=0, le=MAX_BYTES)
    multiprocessors: int = Field(ge=0, le=MAX_BYTES)
    slice: ShortText = ""
    count: int = Field(ge=1, le=100_000)


class HostFacts(Document):
    """A host as rank 0 found it; a figure that it does not tell is None, a text empty."""

    cpu: FactText = ""
    cpu_capability: FactText = ""
    cpus: FactText = ""
    allowed_cpus: FactText = ""
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    kernel: FactText = ""
    os: FactText = ""
    image: ShortText = ""


class Interconnect(Document):
    """What lies between devices and hosts.

    `topology` is what `nvidia-smi topo -m` prints, `networks` the speed of each interface in
    Mbit/s, `variables` what the ranks were started with that chooses a transport.
    """

    library: ShortText = ""
    topology: Annotated[tuple[TopologyLine, ...], Field(max_length=200)] = ()
    networks: Annotated[dict[ShortText, int], Field(max_length=100)] = Field(default_factory=dict)
    variables: VariableMap = Field(default_factory=dict)


class ClusterDocument(Document):
    """The file `cluster.json`; `driver` is that of the GPUs, empty without one."""

    schema_version: Literal["repro-gate.cluster/1"] = CLUSTER_SCHEMA
    commit: str
    created_at: Timestamp
    ranks: int = Field(ge=1, le=1_000_000)
    host: HostFacts
    accelerators: Annotated[tuple[Accelerator, ...], Field(max_length=1000)] = ()
    driver: FactText = ""
    interconnect: Interconnect = Interconnect()


def cluster_document(evidence: EvidenceSet) -> ClusterDocument:
    """Of the first run of the commit, and of what the gate's own process saw of its machine."""
    run = evidence.runs[0]
    machine = evidence.machine
    return ClusterDocument(
        commit=evidence.commit,
        created_at=evidence.created_at,
        ranks=max(1, len(run.rank_facts)),
        host=_host(run, machine.image if machine is not None else ""),
        accelerators=_accelerators(run),
        driver=_part(run, "driver"),
        interconnect=Interconnect(
            library=_part(run, "nccl")[:200],
            topology=machine.topology if machine is not None else (),
            networks=machine.networks if machine is not None else {},
            variables=_transport(run),
        ),
    )


def _part(run: RunEvidence, name: str) -> str:
    found = run.environment.part(name)
    return "" if found == NOT_APPLICABLE else found


def _host(run: RunEvidence, image: str) -> HostFacts:
    facts = run.rank_facts[0].facts if run.rank_facts else {}
    return HostFacts(
        cpu=_part(run, "cpu"),
        cpu_capability=_part(run, "cpu_capability"),
        cpus=facts.get("cpus", ""),
        allowed_cpus=facts.get("allowed_cpus", ""),
        memory_bytes=_number(facts.get("memory_bytes", "")),
        memory_limit_bytes=_number(facts.get("memory_limit_bytes", "")),
        kernel=facts.get("kernel", ""),
        os=_part(run, "os"),
        image=image,
    )


def _number(text: str) -> int | None:
    """A count that a process told as text; None for anything else, a limit of `max` included."""
    plain = text.isascii() and text.isdecimal() and len(text) < len(str(MAX_BYTES))
    return int(text) if plain else None


def _accelerators(run: RunEvidence) -> tuple[Accelerator, ...]:
    used = [device for process in run.processes for device in process.devices if device.used]
    # ranks that share a machine see each other's devices: one with a UUID counts once
    known = {device.uuid: device for device in used if device.uuid}
    counted = Counter(map(_kind, (*known.values(), *(one for one in used if not one.uuid))))
    return tuple(
        kind.model_copy(update={"count": count})
        for kind, count in sorted(counted.items(), key=lambda item: item[0].model_dump_json())
    )


def _kind(device: DeviceFacts) -> Accelerator:
    return Accelerator(
        name=device.name,
        revision=device.capability,
        memory_bytes=device.memory_bytes,
        multiprocessors=device.multiprocessors,
        slice=device.slice,
        count=1,
    )


def _transport(run: RunEvidence) -> dict[str, str]:
    told = run.rank_facts[0].variables if run.rank_facts else {}
    return {name: text for name, text in told.items() if name.startswith(TRANSPORT)}
