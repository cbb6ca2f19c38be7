"""The state of each source of nonreproducibility of a cluster, from typed facts of the evidence.

Nothing is read out of a sentence, and `eliminated` needs a fact that shows it. What differs from
run to run (order of a reduction, stragglers, placement) is bounded by runs of this commit. What is
the same in all of them (unlike hardware) no run here bounds, so it is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gate.comparison.differences import Comparison
from gate.evidence.run_evidence import EvidenceSet, RunEvidence
from gate.system.facts import MachineFacts
from gate.training.runs import Commit, RunMode
from gate.verdict.measured_determinism_budget import (
    ClusterSource,
    DeterminismBudget,
    SourceState,
    SourceStatus,
)
from gate.verdict.ranks import (
    HARDWARE_PARTS,
    RunRanks,
    nccl_pinned,
    one_thread,
    ranks_of,
    unlike_hardware,
    whole_world,
)

# a sum of two numbers is rounded once, so it is the same in either order
COMMUTING_RANKS: Final = 2
ONE_PLACE: Final = "one process on one device"


def determinism_budget(
    evidence: EvidenceSet,
    *,
    strict: Comparison,
    default: Comparison | None,
    baseline: Comparison | None,
) -> DeterminismBudget:
    """All five sources; `strict` and `default` compare runs of one kind of the commit.

    `baseline` compares with the entry, which may be of another machine.
    """
    runs = [run for run in evidence.runs if run.run.commit is Commit.HEAD]
    judged = evidence.runs_of(RunMode.STRICT)
    counted = len(judged) + (len(evidence.runs_of(RunMode.DEFAULT)) if default is not None else 0)
    spread = _spread(strict, default)
    ranks = ranks_of(judged[0])
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
    """The largest relative difference of a metric between compared runs, None where none says.

    Runs with equal metrics that end in another state, or took other steps, have no such figure.
    """
    compared = [pair for pair in pairs if pair is not None]
    worst = 0.0
    for pair in compared:
        relative = [delta.relative for delta in pair.metrics]
        if pair.series or pair.step_faults or not pair.something_compared:
            return None
        if (pair.tensors and not relative) or None in relative:
            return None
        worst = max(worst, *(number for number in relative if number is not None), 0.0)
    return worst if compared else None


def _bounded(
    source: ClusterSource, spread: float | None, counted: int, because: str
) -> SourceState:
    """By what the runs differ; where they say no number, what is known is all there is."""
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
    """Sums over ranks: in which order is up to the library, unless there is one order only."""
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
    """Other work on the machine: what it takes away is time, unless something is chosen by that."""
    source = ClusterSource.NEIGHBOURS
    on_gpu = judged[0].environment.on_gpu
    if len(ranks.ranks) == 1 and not on_gpu and all(map(one_thread, judged)):
        because = "one thread, which no load of the machine adds to or takes away"
        return _state(source, SourceStatus.ELIMINATED, because)
    known = _known_limits(judged[0])
    if on_gpu:
        known += _known_sharing(machine)
    because = ", ".join(known) if known else "nothing is known of other work on the machine"
    return _state(source, SourceStatus.RECORDED, because)


def _known_limits(run: RunEvidence) -> list[str]:
    facts = run.rank_facts[0].facts if run.rank_facts else {}
    known = []
    cpus, allowed = facts.get("cpus", ""), facts.get("allowed_cpus", "")
    # the training's own words: what is no number is not shown
    if cpus.isdecimal() and allowed.isdecimal():
        known.append(f"{allowed[:9]} of {cpus[:9]} CPUs allowed")
    memory = facts.get("memory_limit_bytes", "")
    if memory.isdecimal():
        known.append(f"memory limit {int(memory[:18]) / 2**30:,.1f} GiB")
    return known


def _known_sharing(machine: MachineFacts | None) -> list[str]:
    """How many GPUs of the machine are closed to other processes, or cut into slices."""
    gpus = machine.gpus if machine is not None else ()
    if not gpus:
        return []
    alone = sum(gpu.compute_mode == "Exclusive_Process" for gpu in gpus)
    cut = sum(gpu.mig == "Enabled" for gpu in gpus)
    known = [f"{alone} of {len(gpus)} GPUs exclusive"]
    return [*known, f"{cut} cut into slices"] if cut else known


def _workers(runs: Sequence[RunEvidence], ranks: RunRanks) -> SourceState:
    """A number of ranks that changes: another split of each batch, and other sums."""
    source = ClusterSource.WORKERS
    number = len(ranks.ranks)
    if number == 1:
        return _state(source, SourceStatus.NOT_EXERCISED, "one process trained in each run")
    same = all(ranks_of(run).ranks == ranks.ranks for run in runs)
    # one process a rank and the same steps in each is what the evidence is refused without
    if same and _all_whole(runs):
        because = f"the same {number} ranks trained in all {len(runs)} runs, from first to last"
        return _state(source, SourceStatus.ELIMINATED, because)
    counts = sorted({len(ranks_of(run).ranks) for run in runs})
    seen = " or ".join(map(str, counts))
    because = f"{seen} ranks trained, and not every rank says that it knows of as many"
    return _state(source, SourceStatus.RECORDED, because)


def _hardware(run: RunEvidence, ranks: RunRanks, baseline: Comparison | None) -> SourceState:
    source = ClusterSource.HARDWARE
    unlike = unlike_hardware(run)
    if unlike:
        because = f"ranks differ in {', '.join(unlike)}"
        return _state(source, SourceStatus.RECORDED, because)
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
        return _state(source, SourceStatus.RECORDED, f"{what} say nothing of their hardware")
    return _state(source, SourceStatus.ELIMINATED, f"{what} have the same {', '.join(known)}")


def _placement(
    judged: Sequence[RunEvidence], ranks: RunRanks, spread: float | None, counted: int
) -> SourceState:
    """Which rank comes last, and which rank has which GPU."""
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
