"""What a run says of its ranks: how many, on which devices, by what they reduce."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gate.evidence.run_evidence import DeviceFacts, RunEvidence
from gate.settings.knobs import BY_NAME

# parts of the environment that are the machine's and not software's
HARDWARE_PARTS: Final = ("device", "driver", "cpu", "cpu_capability")
_ALGORITHM: Final = BY_NAME["nccl_algorithm"]
_NCCL_ALONE: Final = re.compile(r"(?:^|,)cuda:nccl(?:,|$)")
# several names are a list that NCCL chooses from, by size
_ONE_ALGORITHM: Final = re.compile(r"[A-Za-z]+\Z")
DeviceKind = tuple[str, str, int, int, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRanks:
    """A run as a cluster: its ranks, and the GPUs that its processes used."""

    ranks: tuple[int, ...]
    devices: tuple[DeviceFacts, ...]

    @property
    def one_place(self) -> bool:
        """Whether one process computed on one device at most."""
        return len(self.ranks) == 1 and len(self.devices) <= 1

    @property
    def kinds(self) -> frozenset[DeviceKind]:
        """The different GPUs among those that were used."""
        return frozenset(
            (one.name, one.capability, one.multiprocessors, one.memory_bytes, one.slice)
            for one in self.devices
        )


def ranks_of(run: RunEvidence) -> RunRanks:
    """Of the attestations: what the launcher said of itself counts for nothing."""
    devices = {
        device.uuid or f"{process.rank}/{device.index}": device
        for process in run.processes
        for device in process.devices
        if device.used
    }
    ranks = sorted({process.rank for process in run.processes})
    return RunRanks(ranks=tuple(ranks), devices=tuple(devices.values()))


def whole_world(run: RunEvidence) -> bool:
    """Whether ranks 0 to N-1 trained, and every rank says that there are N."""
    ranks = ranks_of(run).ranks
    return ranks == tuple(range(len(ranks))) and run.environment.of_ranks("world_size") == (
        str(len(ranks)),
    )


def nccl_pinned(run: RunEvidence) -> bool:
    """Whether each rank reduces by NCCL on its GPU, and each process by one named algorithm.

    A list of algorithms, or one that is left out (`^NVLS`), leaves a choice to NCCL.
    """
    told = {rank.rank: rank.facts.get("process_group", "") for rank in run.rank_facts}
    return (
        set(told) == set(ranks_of(run).ranks)
        and all(_NCCL_ALONE.search(backends) for backends in told.values())
        and not run.environment.ranks_on_cpu
        and all(_one_algorithm(process.variables) for process in run.processes)
    )


def _one_algorithm(variables: Mapping[str, str]) -> bool:
    value = variables.get(_ALGORITHM.variable, "")
    return _ALGORITHM.accepts_value(value) and _ONE_ALGORITHM.match(value) is not None


def unlike_hardware(run: RunEvidence) -> tuple[str, ...]:
    """The parts of the hardware in which a rank, or a GPU that one process used, is another."""
    told = {unlike.part for unlike in run.environment.unlike_ranks}
    parts = [part for part in HARDWARE_PARTS if part in told]
    if "device" not in parts and len(ranks_of(run).kinds) > 1:
        parts.insert(0, "device")
    return tuple(parts)


def one_thread(run: RunEvidence) -> bool:
    """Whether every process computes in one thread that no load of the machine takes away or adds.

    Python's own threads and workers of a DataLoader do other work beside it: with one of them, what
    is done first may be a matter of the machine's load.
    """
    dynamic = (BY_NAME["omp_dynamic"], BY_NAME["mkl_dynamic"])
    return (
        run.environment.part("threads") == "1"
        and all(process.applied.get("threads") == "1" for process in run.processes)
        and all(
            knob.accepts_value(process.variables.get(knob.variable, ""))
            for knob in dynamic
            for process in run.processes
        )
        and bool(run.live_threads)
        and all(live.count == 1 for live in run.live_threads)
        and not any(rank.facts.get("loader_workers") for rank in run.rank_facts)
        and bool(run.rank_facts)
    )
