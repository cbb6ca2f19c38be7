"""The determinism budget: the state of each source of nonreproducibility of a cluster.

Each state follows from typed facts of the evidence, never from text. `eliminated` needs a fact that
proves it. Sources that vary from run to run (order of a reduction, stragglers, placement) are
bounded by runs of this commit. A source that is the same in all runs (unlike hardware) is bounded
by no run here, so it is only recorded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gate.comparison.differences import Comparison
from gate.evidence.run_evidence import DeviceFacts, EvidenceSet, RunEvidence
from gate.settings.knobs import BY_NAME
from gate.system.machine import MachineFacts
from gate.training.runs import Commit, RunMode
from gate.verdict.verdict import ClusterSource, DeterminismBudget, SourceState, SourceStatus

# The parts of the environment that belong to the machine rather than to software.
HARDWARE_PARTS: Final = ("device", "driver", "cpu", "cpu_capability")
_ALGORITHM: Final = BY_NAME["nccl_algorithm"]
_NCCL_ALONE: Final = re.compile(r"(?:^|,)cuda:nccl(?:,|$)")
# Several names are a list from which NCCL chooses by message size, so only a single name pins it.
_ONE_ALGORITHM: Final = re.compile(r"[A-Za-z]+\Z")
DeviceKind = tuple[str, str, int, int, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRanks:
    """A run as a cluster: its ranks, and the GPUs that its processes used."""

    ranks: tuple[int, ...]
    devices: tuple[DeviceFacts, ...]

    @property
    def one_place(self) -> bool:
        """Whether a single process computed on at most one device."""
        return len(self.ranks) == 1 and len(self.devices) <= 1

    @property
    def kinds(self) -> frozenset[DeviceKind]:
        """The distinct kinds of GPU among those that were used."""
        return frozenset(
            (
                device.name,
                device.capability,
                device.multiprocessors,
                device.memory_bytes,
                device.slice,
            )
            for device in self.devices
        )


def run_ranks(run: RunEvidence) -> RunRanks:
    """Return the ranks and GPUs that attestations name; the launcher's own claims are ignored."""
    devices = {
        # Two processes may use one GPU, so devices are counted by their UUID where it is known.
        device.uuid or f"{process.rank}/{device.index}": device
        for process in run.processes
        for device in process.devices
        if device.used
    }
    ranks = sorted({process.rank for process in run.processes})
    return RunRanks(ranks=tuple(ranks), devices=tuple(devices.values()))


def whole_world(run: RunEvidence) -> bool:
    """Return whether ranks 0 to N-1 trained, and every rank reports a world size of N."""
    ranks = run_ranks(run).ranks
    return ranks == tuple(range(len(ranks))) and run.environment.of_ranks("world_size") == (
        str(len(ranks)),
    )


def nccl_pinned(run: RunEvidence) -> bool:
    """Return whether every rank reduces by NCCL on its GPU, with one named algorithm.

    A list of algorithms, or an exclusion such as `^NVLS`, leaves a choice to NCCL.
    """
    groups = {rank.rank: rank.facts.get("process_group", "") for rank in run.rank_facts}
    return (
        set(groups) == set(run_ranks(run).ranks)
        and all(_NCCL_ALONE.search(backends) for backends in groups.values())
        and not run.environment.ranks_on_cpu
        and all(_one_algorithm(process.variables) for process in run.processes)
    )


def _one_algorithm(variables: Mapping[str, str]) -> bool:
    value = variables.get(_ALGORITHM.variable, "")
    return _ALGORITHM.accepts_value(value) and _ONE_ALGORITHM.match(value) is not None


def unlike_hardware(run: RunEvidence) -> tuple[str, ...]:
    """Return the parts of the hardware that differ between ranks, or between a process's GPUs."""
    unlike_parts = {unlike.part for unlike in run.environment.unlike_ranks}
    parts = [part for part in HARDWARE_PARTS if part in unlike_parts]
    if "device" not in parts and len(run_ranks(run).kinds) > 1:
        parts.insert(0, "device")
    return tuple(parts)


def one_thread(run: RunEvidence) -> bool:
    """Return whether every process computes in one thread, whatever the load of the machine is.

    With dynamic threads, the load may add or remove threads. Python's own threads and DataLoader
    workers do other work in parallel: with any of them, the order of work may depend on the load.
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


# A sum of two numbers is rounded once, so it is the same in either order.
COMMUTING_RANKS: Final = 2
ONE_PLACE: Final = "one process on one device"


def determinism_budget(
    evidence: EvidenceSet,
    *,
    strict: Comparison,
    default: Comparison | None,
    baseline: Comparison | None,
) -> DeterminismBudget:
    """Return the states of all five sources.

    `strict` and `default` each compare runs of one mode of the commit under test. `baseline`
    compares with the entry, which may come from a different machine.
    """
    runs = [run for run in evidence.runs if run.run.commit is Commit.HEAD]
    judged = evidence.runs_of(RunMode.STRICT)
    counted = len(judged) + (len(evidence.runs_of(RunMode.DEFAULT)) if default is not None else 0)
    spread = _spread(strict, default)
    ranks = run_ranks(judged[0])
    return (
        _reduction(judged, ranks, strict, spread, counted),
        _neighbours(judged, ranks, evidence.machine),
        _workers(runs, ranks),
        _hardware(judged[0], ranks, baseline),
        _placement(judged, ranks, spread, counted),
    )


def _state(source: ClusterSource, state: SourceStatus, because: str) -> SourceState:
    return SourceState(kind=source, state=state, because=because)


def _spread(*pairs: Comparison | None) -> float | None:
    """Return the largest relative difference of a metric between compared runs.

    None where no figure exists: metrics are equal but the final states differ, or step counts
    differ.
    """
    compared = [pair for pair in pairs if pair is not None]
    worst = 0.0
    for pair in compared:
        relative = [delta.relative for delta in pair.metrics]
        # Without common metrics and steps, no figure can bound the source.
        if pair.series or pair.step_faults or not pair.something_compared:
            return None
        if (pair.tensors and not relative) or None in relative:
            return None
        worst = max(worst, *(number for number in relative if number is not None), 0.0)
    return worst if compared else None


def _bounded(
    source: ClusterSource, spread: float | None, counted: int, because: str
) -> SourceState:
    """Return `bounded` with the spread as its figure, or `recorded` where the spread is unknown."""
    if spread is None:
        return _state(source, SourceStatus.RECORDED, f"{because}; no figure bounds it")
    return SourceState(
        kind=source, state=SourceStatus.BOUNDED, because=because, figure=spread, runs=counted
    )


def _reduction(
    judged: Sequence[RunEvidence],
    ranks: RunRanks,
    strict: Comparison,
    spread: float | None,
    counted: int,
) -> SourceState:
    """Judge the order of sums over ranks: the library chooses it, unless only one order exists."""
    source = ClusterSource.REDUCTION
    number = len(ranks.ranks)
    if ranks.one_place:
        return _state(source, SourceStatus.NOT_EXERCISED, f"{ONE_PLACE}: nothing is reduced")
    if number == COMMUTING_RANKS and len(ranks.devices) <= number and _all_whole(judged):
        because = "two ranks: a sum of two numbers is the same in either order"
        return _state(source, SourceStatus.ELIMINATED, because)
    if all(map(nccl_pinned, judged)) and strict.numerically_equal:
        because = (
            f"all {number} ranks reduce by NCCL with one algorithm that is set, and "
            f"{len(judged)} strict runs are equal"
        )
        return _state(source, SourceStatus.ELIMINATED, because)
    what = f"{number} ranks" if number > 1 else f"{len(ranks.devices)} GPUs of one process"
    return _bounded(source, spread, counted, f"{what}, and nothing shows one order of reduction")


def _all_whole(judged: Sequence[RunEvidence]) -> bool:
    return all(map(whole_world, judged))


def _neighbours(
    judged: Sequence[RunEvidence], ranks: RunRanks, machine: MachineFacts | None
) -> SourceState:
    """Judge other work on the machine: it costs time, which matters if timing decides something."""
    source = ClusterSource.NEIGHBOURS
    on_gpu = judged[0].environment.on_gpu
    if len(ranks.ranks) == 1 and not on_gpu and all(map(one_thread, judged)):
        because = "one thread, regardless of other load on the machine"
        return _state(source, SourceStatus.ELIMINATED, because)
    known = _known_limits(judged[0])
    if on_gpu:
        known += _known_sharing(machine)
    because = ", ".join(known) if known else "nothing is known about other work on the machine"
    return _state(source, SourceStatus.RECORDED, because)


def _known_limits(run: RunEvidence) -> list[str]:
    facts = run.rank_facts[0].facts if run.rank_facts else {}
    known = []
    cpus, allowed = facts.get("cpus", ""), facts.get("allowed_cpus", "")
    # The training wrote these facts, so anything but a number is not shown.
    if cpus.isdecimal() and allowed.isdecimal():
        known.append(f"{allowed[:9]} of {cpus[:9]} CPUs allowed")
    memory = facts.get("memory_limit_bytes", "")
    if memory.isdecimal():
        known.append(f"memory limit {int(memory[:18]) / 2**30:,.1f} GiB")
    return known


def _known_sharing(machine: MachineFacts | None) -> list[str]:
    """Return how many GPUs of the machine are closed to other processes or cut into slices."""
    gpus = machine.gpus if machine is not None else ()
    if not gpus:
        return []
    alone = sum(gpu.compute_mode == "Exclusive_Process" for gpu in gpus)
    cut = sum(gpu.mig == "Enabled" for gpu in gpus)
    known = [f"{alone} of {len(gpus)} GPUs exclusive"]
    return [*known, f"{cut} cut into slices"] if cut else known


def _workers(runs: Sequence[RunEvidence], ranks: RunRanks) -> SourceState:
    """Judge a changing number of ranks, which splits batches and adds sums differently."""
    source = ClusterSource.WORKERS
    number = len(ranks.ranks)
    if number == 1:
        return _state(source, SourceStatus.NOT_EXERCISED, "one process trained in each run")
    same = all(run_ranks(run).ranks == ranks.ranks for run in runs)
    # Evidence without one process per rank, or with different steps, was already refused.
    if same and _all_whole(runs):
        because = f"the same {number} ranks trained in all {len(runs)} runs, from first to last"
        return _state(source, SourceStatus.ELIMINATED, because)
    counts = sorted({len(run_ranks(run).ranks) for run in runs})
    seen = " or ".join(map(str, counts))
    because = f"{seen} ranks trained, but not every rank reports that many"
    return _state(source, SourceStatus.RECORDED, because)


def _hardware(run: RunEvidence, ranks: RunRanks, baseline: Comparison | None) -> SourceState:
    source = ClusterSource.HARDWARE
    unlike = unlike_hardware(run)
    if unlike:
        because = f"ranks differ in {', '.join(unlike)}"
        return _state(source, SourceStatus.RECORDED, because)
    # Unlike hardware between baseline and head is the same source, seen across calls.
    moved = {change.part for change in baseline.environment} if baseline is not None else set()
    parts = [part for part in HARDWARE_PARTS if part in moved]
    if parts:
        because = f"the baseline was recorded with another {', '.join(parts)}"
        return _state(source, SourceStatus.RECORDED, because)
    if ranks.one_place:
        return _state(source, SourceStatus.NOT_EXERCISED, ONE_PLACE)
    known = [part for part in HARDWARE_PARTS if part in run.environment.parts]
    what = f"all {len(ranks.ranks)} ranks" if len(ranks.ranks) > 1 else "all GPUs of the process"
    if not known:
        return _state(source, SourceStatus.RECORDED, f"{what} report no hardware")
    return _state(source, SourceStatus.ELIMINATED, f"{what} have the same {', '.join(known)}")


def _placement(
    judged: Sequence[RunEvidence], ranks: RunRanks, spread: float | None, counted: int
) -> SourceState:
    """Judge which rank comes last, and which rank has which GPU."""
    source = ClusterSource.PLACEMENT
    if ranks.one_place:
        return _state(source, SourceStatus.NOT_EXERCISED, ONE_PLACE)
    known = all(device.uuid for device in ranks.devices) and bool(ranks.devices)
    same = all(_places(run) == _places(judged[0]) for run in judged)
    where = ""
    if known:
        where = ", each rank on the same GPU" if same else ", ranks on other GPUs in each run"
    number = len(ranks.ranks)
    what = f"{number} ranks" if number > 1 else f"{len(ranks.devices)} GPUs of one process"
    because = f"{what}{where}; which one comes last is up to the machine"
    return _bounded(source, spread, counted, because)


def _places(run: RunEvidence) -> frozenset[tuple[int, str]]:
    return frozenset(
        (process.rank, device.uuid)
        for process in run.processes
        for device in process.devices
        if device.used
    )
