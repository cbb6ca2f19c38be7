"""Keep what each of several ranks recorded, and check that replicas of one model stay equal.

A verdict is based on the digests of all ranks together. Only the records of the single ranks show
which one is at fault, so they are kept too. DistributedDataParallel keeps its replicas equal by
giving all of them the same gradients. The gate compares what the ranks recorded, and adds no
communication to the training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence

from gate.evidence.harness_files import Replicated
from gate.evidence.ranks import TrainedRank
from gate.evidence.run_evidence import (
    MAX_DRIFTED_NAMES,
    MAX_RANKS,
    CheckpointManifest,
    HarnessProcess,
    MetricSeries,
    RankRecord,
    ReplicaDrift,
)
from gate.evidence.saved_state import captured_name
from gate.evidence.step_columns import StepDigests
from gate.evidence.step_work import is_told
from gate.evidence.steps import step_digests
from gate.text.untrusted_text import plain_text

STRUCTURE = "structure"
# Limit for all ranks together. Above it, each rank keeps its digests only for the steps that a
# baseline keeps.
MAX_RANK_STEPS = 20_000
# digest by rank, after one step of one optimizer
Held = dict[int, str]


def rank_records(
    ranks: Sequence[TrainedRank],
    processes: Sequence[HarnessProcess],
    metrics: Mapping[int, tuple[MetricSeries, ...]],
) -> tuple[RankRecord, ...]:
    """Return each rank's own record; none if only one rank trained, whose record is the run's.

    `metrics` are those of the ranks other than 0.
    """
    if len(ranks) == 1:
        return ()
    nodes = {(process.rank, process.pid): process.node for process in processes}
    every = len(ranks) * max(len(rank.lines.observed) for rank in ranks) <= MAX_RANK_STEPS
    return tuple(
        RankRecord(
            rank=rank.files.rank,
            node=nodes.get((rank.files.rank, rank.files.pid), ""),
            steps=_kept(step_digests((rank,)), every=every),
            metrics=metrics.get(rank.files.rank, ()),
        )
        for rank in ranks[:MAX_RANKS]
    )


def _kept(digests: StepDigests, *, every: bool) -> StepDigests:
    if every:
        return digests
    places = {step: place for place, step in enumerate(digests.steps)}
    digests_kept = (
        (places[digest.step], digest) for digest in digests.observed if is_told(digest.step)
    )
    return StepDigests(digests.steps, digests_kept)


def replica_drift(
    ranks: Sequence[TrainedRank], checkpoint: CheckpointManifest
) -> ReplicaDrift | None:
    """Return the first step after which replicas of one model differ, or None if they stay equal.

    Ranks are compared only if they report that the same group keeps all parameters of the same
    optimizer equal. They must also give the optimizer the same parameters. So shards, a local part
    of a model, and a rank outside the group are not compared.
    """
    groups: dict[Replicated, list[TrainedRank]] = {}
    for rank in ranks:
        for replicated in rank.summary.replicated:
            if rank.files.rank in replicated.ranks:
                groups.setdefault(replicated, []).append(rank)
    whole = (
        (group, members)
        for group, members in groups.items()
        if len(members) > 1 and {member.files.rank for member in members} == set(group.ranks)
    )
    drifts = [drift for group, members in whole if (drift := _drift(group, members, checkpoint))]
    return min(drifts, key=lambda drift: drift.step, default=None)


def _drift(
    replicated: Replicated, members: Sequence[TrainedRank], checkpoint: CheckpointManifest
) -> ReplicaDrift | None:
    equal_until = None
    for step, held in sorted(_by_step(replicated.optimizer, members).items()):
        if len(held) < len(members):
            # each rank chooses its sampling intervals, so not all of them observed this step
            continue
        if len(set(held.values())) == 1:
            equal_until = step
            continue
        return _replica_drift(
            replicated, members, held, checkpoint, step=step, equal_until=equal_until
        )
    last = max(_last_step(replicated.optimizer, member) for member in members)
    # If the last step was observed as equal, a difference at the end means that the script itself
    # changed its weights after the step.
    if equal_until is None or equal_until == last:
        return None
    ends = _at_end(replicated.optimizer, members, checkpoint)
    if len(set(ends.values())) <= 1:
        return None
    drift = _replica_drift(
        replicated, members, ends, checkpoint, step=last, equal_until=equal_until
    )
    return drift.model_copy(update={"at_end": True})


def _last_step(optimizer: int, member: TrainedRank) -> int:
    own = member.lines.column("optimizer") == optimizer
    return int(member.lines.column("step")[own].max(initial=0))


def _replica_drift(
    replicated: Replicated,
    members: Sequence[TrainedRank],
    held: Mapping[int, Hashable],
    checkpoint: CheckpointManifest,
    *,
    step: int,
    equal_until: int | None,
) -> ReplicaDrift:
    usual = Counter(held.values()).most_common(1)[0][0]
    like = min(rank for rank, digest in held.items() if digest == usual)
    apart = tuple(sorted(rank for rank, digest in held.items() if digest != usual))
    names = tuple(_differing(replicated.optimizer, members, like, apart, checkpoint))
    return ReplicaDrift(
        step=step,
        equal_until=equal_until,
        like=like,
        ranks=apart[:MAX_RANKS],
        parameters=names[:MAX_DRIFTED_NAMES],
        differing=len(names),
    )


def _at_end(
    optimizer: int, members: Sequence[TrainedRank], checkpoint: CheckpointManifest
) -> dict[int, tuple[str, ...]]:
    """Return the digests of the optimizer's parameters by rank; empty if some are unknown."""
    digests = {tensor.name: tensor.sha256 for tensor in checkpoint.tensors}
    places = {
        member.files.rank: [
            captured_name(member.files.rank, name) for name in _parameters_of(optimizer, member)
        ]
        for member in members
    }
    if not all(names and digests.keys() >= set(names) for names in places.values()):
        return {}
    return {rank: tuple(digests[name] for name in names) for rank, names in places.items()}


def _parameters_of(optimizer: int, member: TrainedRank) -> list[str]:
    """Return the names of the optimizer's parameters, in its order."""
    names = member.summary.parameter_names
    return [name for place, name in names.items() if place.startswith(f"{optimizer}/")]


def _by_step(optimizer: int, members: Sequence[TrainedRank]) -> dict[int, Held]:
    """Return the digests by rank after each step at which the members' parameters correspond.

    They correspond if their structure and the digest's algorithm are the same on all ranks.
    """
    by_step: dict[int, dict[int, tuple[str, str]]] = {}
    for member in members:
        structure = ""
        for place in member.lines.observed:
            line = member.lines[place]
            if line.optimizer != optimizer:
                continue
            structure = line.fingerprints.get(STRUCTURE, structure)
            if line.parameters is not None:
                known = by_step.setdefault(line.step, {})
                known[member.files.rank] = structure, line.parameters
    return {
        step: {rank: digest for rank, (_, digest) in held.items()}
        for step, held in by_step.items()
        if len({(structure, digest.partition(":")[0]) for structure, digest in held.values()}) == 1
    }


def _differing(
    optimizer: int,
    members: Sequence[TrainedRank],
    like: int,
    apart: Sequence[int],
    checkpoint: CheckpointManifest,
) -> Iterator[str]:
    """Yield the optimizer's parameters that differ at the end, in its order."""
    digests = {tensor.name: tensor.sha256 for tensor in checkpoint.tensors}
    usual = next(member for member in members if member.files.rank == like)
    for name in _parameters_of(optimizer, usual):
        own = digests.get(captured_name(like, name))
        others = {digests.get(captured_name(rank, name)) for rank in apart}
        if own is not None and others != {own}:
            yield plain_text(name)
