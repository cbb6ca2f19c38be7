"""The documents for people: `cluster.json`, `data.json`, `environment.json` and `seeds.json`.

They are derived from the evidence. No decision reads them.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Final, Literal

from pydantic import Field

from gate.data.data_sets import DataSets
from gate.evidence.columns import MAX_BYTES
from gate.evidence.lock_files import Locks
from gate.evidence.observations import Override
from gate.evidence.run_evidence import DeviceFacts, Devices, EvidenceSet, RunEvidence
from gate.evidence.step_work import SeedResults
from gate.system.machine import (
    FactMap,
    FactText,
    MachineFacts,
    ShortText,
    TopologyLine,
    VariableMap,
)
from gate.system.node import NodeFacts
from gate.text.document import Document, Timestamp
from gate.training.environment import (
    INDEX,
    MAX_PACKAGES,
    NOT_APPLICABLE,
    Environment,
    PackageText,
    UnlikeRank,
    normalized_name,
)

CLUSTER_SCHEMA: Final = "repro-gate.cluster/1"
CLUSTER_NAME: Final = "cluster.json"
# prefixes of the variables that choose how ranks communicate
TRANSPORT: Final = ("NCCL_", "GLOO_")


class Accelerator(Document):
    """A kind of GPU on which a rank of the training held memory, and the number of such GPUs.

    `revision` is the compute capability. `slice` is the profile of a MIG slice, empty for a whole
    GPU.
    """

    name: ShortText
    revision: ShortText
    memory_bytes: int = Field(ge=0, le=MAX_BYTES)
    multiprocessors: int = Field(ge=0, le=MAX_BYTES)
    slice: ShortText = ""
    count: int = Field(ge=1, le=100_000)


class HostFacts(Document):
    """The host as rank 0 found it; an unknown number is None, an unknown text is empty."""

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
    """How devices and hosts are connected.

    `topology` is the output of `nvidia-smi topo -m`. `networks` maps each interface to its speed in
    Mbit/s. `variables` are those that choose a transport, as the ranks were started with them.
    """

    library: ShortText = ""
    topology: Annotated[tuple[TopologyLine, ...], Field(max_length=200)] = ()
    networks: Annotated[dict[ShortText, int], Field(max_length=100)] = Field(default_factory=dict)
    variables: VariableMap = Field(default_factory=dict)


class ClusterDocument(Document):
    """The file `cluster.json`.

    `driver` is the driver of the GPUs, empty without a GPU. `nodes` are the nodes of a cluster;
    there are none if the training ran on the gate's own machine.
    """

    schema_version: Literal["repro-gate.cluster/1"] = CLUSTER_SCHEMA
    commit: str
    created_at: Timestamp
    ranks: int = Field(ge=1, le=1_000_000)
    host: HostFacts
    accelerators: Annotated[tuple[Accelerator, ...], Field(max_length=1000)] = ()
    driver: FactText = ""
    interconnect: Interconnect = Interconnect()
    nodes: Annotated[tuple[NodeFacts, ...], Field(max_length=512)] = ()


def cluster_document(evidence: EvidenceSet) -> ClusterDocument:
    """Build the document from the first run and from what the gate saw of its own machine."""
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
        nodes=run.nodes,
    )


def _part(run: RunEvidence, name: str) -> str:
    part = run.environment.part(name)
    return "" if part == NOT_APPLICABLE else part


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
    """Return a count that a process reported as text, or None for any other text.

    The limit `max`, which means unlimited, gives None too.
    """
    plain = text.isascii() and text.isdecimal() and len(text) < len(str(MAX_BYTES))
    return int(text) if plain else None


def _accelerators(run: RunEvidence) -> tuple[Accelerator, ...]:
    used = [device for process in run.processes for device in process.devices if device.used]
    # Ranks on one machine see the same devices, so a device with a UUID is counted once.
    known = {device.uuid: device for device in used if device.uuid}
    counted = Counter(
        map(_kind, (*known.values(), *(device for device in used if not device.uuid)))
    )
    return tuple(
        kind.model_copy(update={"count": count})
        # a fixed order, so that the document does not depend on which process attested first
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
    variables = run.rank_facts[0].variables if run.rank_facts else {}
    return {name: text for name, text in variables.items() if name.startswith(TRANSPORT)}


DATA_SCHEMA: Final = "repro-gate.data/1"
DATA_NAME: Final = "data.json"


class DataDocument(Document):
    """The file `data.json`; `sets` is empty if the training declared no data."""

    schema_version: Literal["repro-gate.data/1"] = DATA_SCHEMA
    commit: str
    created_at: Timestamp
    sets: DataSets


def data_document(evidence: EvidenceSet) -> DataDocument:
    """Build the document of the data sets as the runs found them, without their parts' digests."""
    return DataDocument(
        commit=evidence.commit,
        created_at=evidence.created_at,
        sets=tuple(data_set.model_copy(update={"parts": ()}) for data_set in evidence.data),
    )


ENVIRONMENT_SCHEMA: Final = "repro-gate.environment/1"
ENVIRONMENT_NAME: Final = "environment.json"


class InstalledPackage(Document):
    """An installed distribution and its origin.

    `imported` is true if a rank imported it, `ignored` if the settings exclude it from the
    comparison.
    """

    name: PackageText
    version: PackageText
    origin: PackageText
    imported: bool
    ignored: bool


class RankEnvironment(Document):
    """The facts and variables of one rank of the first run, and every GPU that it can see."""

    rank: int = Field(ge=0, le=1_000_000)
    facts: FactMap
    variables: VariableMap
    devices: Devices = ()


class EnvironmentDocument(Document):
    """The file `environment.json`.

    `parts` and the packages that are imported and not ignored select the entry of the baseline.
    Everything else is informational.
    """

    schema_version: Literal["repro-gate.environment/1"] = ENVIRONMENT_SCHEMA
    commit: str
    base_commit: str | None
    created_at: Timestamp
    parts: dict[str, str]
    packages: Annotated[tuple[InstalledPackage, ...], Field(max_length=MAX_PACKAGES)]
    unlike_ranks: tuple[UnlikeRank, ...]
    ranks: Annotated[tuple[RankEnvironment, ...], Field(max_length=1000)]
    machine: MachineFacts | None
    locks: Locks
    base_locks: Locks


def environment_document(evidence: EvidenceSet) -> EnvironmentDocument:
    """Build the document from the first run.

    One run is enough: two strict runs in different environments are an error elsewhere.
    """
    run = evidence.runs[0]
    return EnvironmentDocument(
        commit=evidence.commit,
        base_commit=evidence.base_commit,
        created_at=evidence.created_at,
        parts=run.environment.parts,
        packages=_packages(run.environment),
        unlike_ranks=run.environment.unlike_ranks,
        ranks=_ranks(run),
        machine=evidence.machine,
        locks=evidence.locks,
        base_locks=evidence.base_locks,
    )


def _packages(environment: Environment) -> tuple[InstalledPackage, ...]:
    imported = set(map(normalized_name, environment.imported))
    ignored = set(map(normalized_name, environment.ignored))
    packages = (line.partition("==") for line in environment.packages)
    return tuple(
        InstalledPackage(
            name=name,
            version=version,
            origin=environment.origins.get(name, INDEX),
            imported=normalized_name(name) in imported,
            ignored=normalized_name(name) in ignored,
        )
        for name, _, version in packages
    )


def _ranks(run: RunEvidence) -> tuple[RankEnvironment, ...]:
    devices = {process.rank: process.devices for process in run.processes if process.devices}
    return tuple(
        RankEnvironment(
            rank=rank.rank,
            facts=rank.facts,
            variables=rank.variables,
            devices=devices.get(rank.rank, ()),
        )
        for rank in run.rank_facts
    )


SEEDS_SCHEMA: Final = "repro-gate.seeds/1"
SEEDS_NAME: Final = "seeds.json"
# the harness's prefix for the seeds it sets, and Python's variable for the seed of `hash()`
SEEDED: Final = "seed_"
HASH_SEED: Final = "PYTHONHASHSEED"
MAX_SEEDED: Final = 1000


class ProcessSeeds(Document):
    """The seeds that one process of the first run attested, by generator."""

    rank: int = Field(ge=0, le=1_000_000)
    pid: int
    generators: Annotated[dict[ShortText, FactText], Field(max_length=20)]
    hash_seed: ShortText = ""


class SeedsDocument(Document):
    """The file `seeds.json`.

    `processes` has the seeds that the gate set. `by_the_script` has the seeds that the training's
    own code set after that. `further` has the results with other seeds, if the policy asks for
    them.
    """

    schema_version: Literal["repro-gate.seeds/1"] = SEEDS_SCHEMA
    commit: str
    created_at: Timestamp
    processes: Annotated[tuple[ProcessSeeds, ...], Field(max_length=MAX_SEEDED)]
    by_the_script: Annotated[tuple[Override, ...], Field(max_length=MAX_SEEDED)] = ()
    further: SeedResults = ()


def seeds_document(evidence: EvidenceSet) -> SeedsDocument:
    """Build the document from the first run; the second strict run had the same seeds."""
    run = evidence.runs[0]
    return SeedsDocument(
        commit=evidence.commit,
        created_at=evidence.created_at,
        processes=_processes(run)[:MAX_SEEDED],
        by_the_script=tuple(override for override in run.overrides if override.seeds)[:MAX_SEEDED],
        further=tuple(seed.result for seed in evidence.seeded),
    )


def _processes(run: RunEvidence) -> tuple[ProcessSeeds, ...]:
    return tuple(
        ProcessSeeds(
            rank=process.rank,
            pid=process.pid,
            generators={
                name.removeprefix(SEEDED): text
                for name, text in process.applied.items()
                if name.startswith(SEEDED)
            },
            hash_seed=process.variables.get(HASH_SEED, "")[:200],
        )
        for process in run.processes
    )
