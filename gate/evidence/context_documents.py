"""The documents for a person: `cluster.json`, `data.json`, `environment.json`, `seeds.json`.

They are made from the evidence and read by nobody who judges.
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
    """The file `cluster.json`; `driver` is that of the GPUs, empty without one.

    `nodes` are those of a cluster, none where the training ran beside the gate.
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
    """A count that a process told as text; None for anything else, a limit of `max` included."""
    plain = text.isascii() and text.isdecimal() and len(text) < len(str(MAX_BYTES))
    return int(text) if plain else None


def _accelerators(run: RunEvidence) -> tuple[Accelerator, ...]:
    used = [device for process in run.processes for device in process.devices if device.used]
    # ranks that share a machine see each other's devices: one with a UUID counts once
    known = {device.uuid: device for device in used if device.uuid}
    counted = Counter(
        map(_kind, (*known.values(), *(device for device in used if not device.uuid)))
    )
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
    variables = run.rank_facts[0].variables if run.rank_facts else {}
    return {name: text for name, text in variables.items() if name.startswith(TRANSPORT)}


DATA_SCHEMA: Final = "repro-gate.data/1"
DATA_NAME: Final = "data.json"


class DataDocument(Document):
    """The file `data.json`; a training that declared no data has no `sets`."""

    schema_version: Literal["repro-gate.data/1"] = DATA_SCHEMA
    commit: str
    created_at: Timestamp
    sets: DataSets


def data_document(evidence: EvidenceSet) -> DataDocument:
    """The data sets as the runs found them, without the digests of their parts."""
    return DataDocument(
        commit=evidence.commit,
        created_at=evidence.created_at,
        sets=tuple(data_set.model_copy(update={"parts": ()}) for data_set in evidence.data),
    )


ENVIRONMENT_SCHEMA: Final = "repro-gate.environment/1"
ENVIRONMENT_NAME: Final = "environment.json"


class InstalledPackage(Document):
    """A distribution: where it came from, whether a rank imported it, or the settings ignore it."""

    name: PackageText
    version: PackageText
    origin: PackageText
    imported: bool
    ignored: bool


class RankEnvironment(Document):
    """A rank of the first run: its facts, its variables, and every GPU that it can see."""

    rank: int = Field(ge=0, le=1_000_000)
    facts: FactMap
    variables: VariableMap
    devices: Devices = ()


class EnvironmentDocument(Document):
    """The file `environment.json`.

    `parts` decide which entry of a baseline judges, with the packages that are imported and not
    ignored. All else is reported and decides nothing.
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
    """Of the first run of the commit; a second one that ran elsewhere is an error of its own."""
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
# as the harness calls what it seeds in each process, and the variable of Python's own hashes
SEEDED: Final = "seed_"
HASH_SEED: Final = "PYTHONHASHSEED"
MAX_SEEDED: Final = 1000


class ProcessSeeds(Document):
    """What one process of the first strict run attested: each generator with its seed."""

    rank: int = Field(ge=0, le=1_000_000)
    pid: int
    generators: Annotated[dict[ShortText, FactText], Field(max_length=20)]
    hash_seed: ShortText = ""


class SeedsDocument(Document):
    """The file `seeds.json`.

    `processes` says what the gate seeded, `by_the_script` what the training's own code did after
    it, and `further` what the training gave with other seeds, where the policy asked for those.
    """

    schema_version: Literal["repro-gate.seeds/1"] = SEEDS_SCHEMA
    commit: str
    created_at: Timestamp
    processes: Annotated[tuple[ProcessSeeds, ...], Field(max_length=MAX_SEEDED)]
    by_the_script: Annotated[tuple[Override, ...], Field(max_length=MAX_SEEDED)] = ()
    further: SeedResults = ()


def seeds_document(evidence: EvidenceSet) -> SeedsDocument:
    """Of the first run of the commit; the second strict one had the same seeds."""
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
