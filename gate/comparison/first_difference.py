"""Find where two results first differ: all series and fingerprints in one numbering.

The numbering is by optimizer steps, which is how the harness counts. A script numbers its own
metrics as it likes: from 0 or 1, by steps or by epochs. A series is taken to count steps if it ends
where the optimizer did, or earlier by less than the distance of two of its points. If it starts at
0, its step 0 is the first step. Epochs of two steps, for example, end halfway and do not qualify. A
series that may count something else sorts behind everything with a known step.

Ranks that train together all differ soon after one of them does, because gradients are summed. So
the rank at fault is the one whose record differs first, in causal order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import sub
from typing import Final, Protocol

from gate.comparison.differences import (
    Event,
    EventKind,
    FingerprintDifference,
    MetricDelta,
    RankDifference,
    SeriesFault,
    SeriesFaultKind,
    TensorDelta,
    WorkChange,
    WorkKind,
    metric_of_rank,
    without_rank,
)
from gate.evidence.run_evidence import CheckpointManifest, MetricSeries, MetricSource, RankRecord
from gate.evidence.step_columns import (
    FAMILIES,
    LAST_WEIGHTS,
    PARAMETERS,
    RANDOM,
    family_of,
    optimizer_of,
)
from gate.evidence.step_work import Given, turn_of

# The members are in causal order, so at one step the cause sorts first.
ORDER = tuple(EventKind)
FINGERPRINTS = {family: EventKind(family) for family in FAMILIES}
LOSS = "loss"
# Maps a fingerprint's name to the steps at which both sides have it.
Recorded = Mapping[str, Collection[int]]
# `CARRIED` is state that goes on from step to step. `BEFORE` names which of it is recorded earlier
# in the same step than the event.
CARRIED = (RANDOM, PARAMETERS)
# The suffix of the first pass's loss in a step with several passes.
FIRST_LOSS: Final = ".pass1"
BEFORE = {EventKind.LOSS: RANDOM, EventKind.METRIC: PARAMETERS}
WORK_NAMES = {
    WorkKind.SAMPLES: "samples per step",
    WorkKind.ROWS: "rows of input per step",
    WorkKind.PASSES: "backward passes per step",
    WorkKind.TURNS: "turns of the optimizers",
}
OF_THE_SCRIPT: Final = frozenset((EventKind.METRIC, EventKind.METRIC_MISSING))
SERIES_KINDS = {
    SeriesFaultKind.MISSING: EventKind.METRIC_MISSING,
    SeriesFaultKind.EXTRA: EventKind.METRIC_MISSING,
    SeriesFaultKind.DTYPE: EventKind.METRIC,
    SeriesFaultKind.STEPS: EventKind.METRIC_MISSING,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Numbering:
    """Maps a metric's own step to the optimizer step.

    `offsets` contains what to add to each metric's step, None for a metric that counts something
    else.
    """

    offsets: Mapping[str, int | None]

    def step(self, metric: str, own: int | None) -> int | None:
        """Return the optimizer step, or None when the metric counts something else."""
        offset = self.offsets.get(metric)
        return None if own is None or offset is None else own + offset


def numbering_of(series: Iterable[MetricSeries], steps: int, *, certain: bool = True) -> Numbering:
    """Return the numbering of a run of `steps` optimizer steps.

    `certain`: only where the metric cannot count epochs. Otherwise a metric that reaches half as
    far as the optimizer also counts steps. That is needed to compare it after the step of a resume.
    """
    offset = _offset if certain else _likely_offset
    return Numbering(offsets={metric.name: offset(metric, steps) for metric in series})


def numbering_of_both(
    sides: tuple[Iterable[MetricSeries], Iterable[MetricSeries]], steps: tuple[int, int]
) -> Numbering:
    """Return the numbering of two runs: a metric cut short on one side counts as on the other.

    If the runs took different numbers of steps, a metric counts steps only if it does so on both
    sides.
    """
    left, right = (
        numbering_of(series, taken).offsets for series, taken in zip(sides, steps, strict=True)
    )
    offsets: dict[str, int | None] = {}
    for name in {*left, *right}:
        offsets_found = [side[name] for side in (left, right) if name in side]
        known = {offset for offset in offsets_found if offset is not None}
        fits = len(known) == 1 and (steps[0] == steps[1] or None not in offsets_found)
        offsets[name] = known.pop() if fits else None
    return Numbering(offsets=offsets)


def _offset(series: MetricSeries, steps: int) -> int | None:
    """Return the offset of a series, None where it may count epochs of several steps."""
    own = series.points.steps
    if series.source is MetricSource.HARNESS or not own:
        return _likely_offset(series, steps)
    reached = max(own) + _start(own)
    if reached < steps:
        # A metric that is written only every n-th step may end before the last step.
        apart = min(map(sub, islice(own, 1, None), own), default=1)
        return _start(own) if steps - apart < reached else None
    # One point more may be a value from before the first step.
    return _start(own) if reached <= steps + 1 else None


def _likely_offset(series: MetricSeries, steps: int) -> int | None:
    if series.source is MetricSource.HARNESS:
        return 0
    own = series.points.steps
    reaches = bool(own) and (max(own) + _start(own)) * 2 >= steps
    return _start(own) if reaches else None


def _start(own: Sequence[int]) -> int:
    # A script that counts from 0 calls the first optimizer step 0.
    return 1 if min(own) == 0 else 0


def first_events(  # noqa: PLR0913 - each is another kind of what may differ
    numbering: Numbering,
    *,
    steps: tuple[int, int],
    given: Given = (),
    work: Iterable[WorkChange] = (),
    fingerprints: Iterable[FingerprintDifference],
    deltas: Iterable[MetricDelta],
    faults: Iterable[SeriesFault],
    tensors: Iterable[TensorDelta],
) -> tuple[Event, ...]:
    """Return one event for each thing that differs: earliest first, causes before effects.

    `steps` is the number of optimizer steps of each side. A metric that ends where its own run
    ended is no event: the number of steps already is one.
    """
    events = [
        *_step_events(*steps),
        *(_work_event(change) for change in work),
        *map(_fingerprint_event, _apart(tuple(fingerprints))),
        *_metric_events(numbering, deltas),
        *_fault_events(numbering, faults, min(steps) if steps[0] != steps[1] else None),
    ]
    names = sorted(delta.name for delta in tensors)
    events += [Event(kind=EventKind.STATE, name=name, step=None) for name in names[:1]]
    return tuple(sorted(events, key=partial(place_of, given)))


def unrecorded_from(events: Sequence[Event], recorded: Recorded) -> int | None:
    """Return the first step from which fingerprints that precede the first event are missing.

    None where none is missing. A loss is recorded at every step, a fingerprint only at some. What a
    loss shows may have begun at any step since random states and parameters were last seen equal.
    It may also have begun in its own step if that step has no random states.
    """
    if not events or events[0].step is None:
        return None
    kind, step = events[0].kind, events[0].step
    begins = []
    for name, steps in recorded.items():
        # A later optimizer has such a fingerprint only where it makes its step.
        if family_of(name) not in CARRIED or optimizer_of(name):
            continue
        seen = max((candidate for candidate in steps if candidate < step), default=0)
        own = family_of(name) == BEFORE.get(kind) and step not in steps
        if seen and (seen < step - 1 or own):
            begins.append(seen + 1)
    return min(begins, default=None)


def place_of(given: Given, event: Event) -> tuple[float, bool, float, float, float, str]:
    """Return a sort key: by step, then causal order.

    Metrics that count something other than steps come late, and the end state comes last.

    Within a step the optimizers follow each other: the passes of the next see what one updated. If
    one makes several steps before the next makes its first, it is earlier in each of them. A metric
    that the script writes belongs to no optimizer, because it may be computed from any of them.
    """
    at_the_end = event.kind is EventKind.STATE
    optimizer = optimizer_of(without_rank(event.name))
    # A thing without a step could be anywhere, so it never sorts before a known step.
    seen_in = event.step
    # Written after the update: the passes of other optimizers use these weights before its own next
    # pass does.
    if event.kind is EventKind.WEIGHTS and not event.name.startswith(LAST_WEIGHTS) and seen_in:
        seen_in -= 1
    step = math.inf if seen_in is None else seen_in
    turn = step if seen_in is None else turn_of(given, optimizer, seen_in)
    behind = math.inf if event.kind in OF_THE_SCRIPT else optimizer
    return turn, at_the_end, behind, step, _place_in_step(event), event.name


def _place_in_step(event: Event) -> float:
    """Return the place in a step, by kind; the weights of the first pass come from the last update.

    The weights of the last pass follow what the first pass produced.
    """
    place = ORDER.index(event.kind)
    if event.kind is EventKind.WEIGHTS:
        of_last = event.name.startswith(LAST_WEIGHTS)
        return place + 0.5 if of_last else ORDER.index(EventKind.OPTIMIZER) + 0.5
    of_first = event.kind is EventKind.LOSS and without_rank(event.name).endswith(FIRST_LOSS)
    return ORDER.index(EventKind.WEIGHTS) if of_first else place


def _step_events(expected: int, observed: int) -> Iterator[Event]:
    if expected != observed:
        last = min(expected, observed)
        yield Event(
            kind=EventKind.STEPS,
            name="optimizer steps",
            step=last + 1,
            equal_until=last or None,
        )


def _work_event(change: WorkChange) -> Event:
    return Event(
        kind=EventKind(change.kind.value),
        name=WORK_NAMES[change.kind],
        step=change.step,
        equal_until=change.step - 1 or None,
    )


def _apart(
    fingerprints: tuple[FingerprintDifference, ...],
) -> Iterator[FingerprintDifference]:
    """Yield the fingerprints; drop the joint parameter digest if one optimizer's is as early."""
    own = [
        stream.first_step
        for stream in fingerprints
        if stream.fingerprint.startswith(f"{PARAMETERS}.")
    ]
    for fingerprint in fingerprints:
        if fingerprint.fingerprint != PARAMETERS or not own or fingerprint.first_step < min(own):
            yield fingerprint


def _fingerprint_event(fingerprint: FingerprintDifference) -> Event:
    # The name is untrusted. One that the harness never writes is reported, since it is no fault of
    # the gate.
    return Event(
        kind=FINGERPRINTS.get(family_of(fingerprint.fingerprint), EventKind.METRIC),
        name=fingerprint.fingerprint,
        step=fingerprint.first_step,
        equal_until=fingerprint.equal_until,
    )


def kind_of_metric(name: str) -> EventKind:
    """Return `LOSS` for what the harness saw `backward` called on, else `METRIC`."""
    name = without_rank(name)
    is_loss = name == LOSS or name.startswith(f"{LOSS}.")
    return EventKind.LOSS if is_loss else EventKind.METRIC


def _metric_events(numbering: Numbering, deltas: Iterable[MetricDelta]) -> Iterator[Event]:
    first: dict[str, int] = {}
    for delta in deltas:
        first[delta.metric] = min(delta.step, first.get(delta.metric, delta.step))
    for name, own in first.items():
        step = numbering.step(name, own)
        yield Event(kind=kind_of_metric(name), name=name, step=step, own_step=own)


def _fault_events(
    numbering: Numbering, faults: Iterable[SeriesFault], ended_after: int | None
) -> Iterator[Event]:
    for fault in faults:
        step = numbering.step(fault.metric, fault.first_step)
        follows = ended_after is not None and (step is None or step > ended_after)
        if not follows:
            yield Event(
                kind=SERIES_KINDS[fault.kind],
                name=fault.metric,
                step=step,
                own_step=fault.first_step,
            )


STATE_OF_RANK: Final = re.compile(r"state(?:\.rank([0-9]{1,6}))?/.*", re.DOTALL)


class OfRanks(Protocol):
    """The part of a result that this module reads."""

    @property
    def metrics(self) -> tuple[MetricSeries, ...]:
        """The metrics of rank 0 and of the script."""
        ...

    @property
    def ranks(self) -> tuple[RankRecord, ...]:
        """What each rank recorded; empty where unknown, or where only one trained."""
        ...

    @property
    def checkpoint(self) -> CheckpointManifest:
        """The final states of all ranks."""
        ...


def pairs_of(expected: OfRanks, observed: OfRanks) -> tuple[tuple[RankRecord, RankRecord], ...]:
    """Return the records of the ranks that both sides have, in pairs."""
    others = {record.rank: record for record in observed.ranks}
    return tuple((rank, others[rank.rank]) for rank in expected.ranks if rank.rank in others)


def renamed_series(result: OfRanks) -> Iterator[MetricSeries]:
    """Yield every series under its name among all ranks'."""
    yield from result.metrics
    for record in result.ranks:
        for series in record.metrics:
            yield series.model_copy(update={"name": metric_of_rank(series.name, record.rank)})


def ranks_apart(
    fingerprints: Mapping[int, tuple[FingerprintDifference, ...]],
    numbers: tuple[Sequence[MetricDelta], Sequence[SeriesFault]],
    tensors: Sequence[TensorDelta],
    *,
    given: Given,
    numbering: Numbering,
    own: frozenset[str],
) -> tuple[RankDifference, ...]:
    """Return each rank that differs with its first difference, earliest first.

    `fingerprints` are the differing ones by rank. `numbers` are the metrics of all ranks. `own`
    names the metrics that rank 0 recorded by itself; a metric that a script writes belongs to no
    rank.
    """
    differing, states = [], _states(tensors)
    for rank in sorted({*fingerprints, *states}):
        end = metric_of_rank("", rank)

        def of_it(name: str, rank: int = rank, end: str = end) -> bool:
            return name.endswith(end) if rank else name in own

        events = first_events(
            numbering,
            steps=(0, 0),
            given=given,
            fingerprints=fingerprints.get(rank, ()),
            deltas=(delta for delta in numbers[0] if of_it(delta.metric)),
            faults=(fault for fault in numbers[1] if of_it(fault.metric)),
            tensors=states.get(rank, ()),
        )
        if events:
            differing.append(RankDifference(rank=rank, first=events[0]))
    return tuple(
        sorted(
            differing,
            key=lambda first_of_rank: (place_of(given, first_of_rank.first), first_of_rank.rank),
        )
    )


def own_metrics(result: OfRanks) -> frozenset[str]:
    """Return the metrics that rank 0 recorded by itself."""
    recorded = {MetricSource.HARNESS, MetricSource.LOGGED}
    return frozenset(series.name for series in result.metrics if series.source in recorded)


def trained_ranks(result: OfRanks) -> int:
    """Return the number of ranks that trained, judging by what they left."""
    return max(
        1, len(result.ranks), len({rank_of(tensor.name) for tensor in result.checkpoint.tensors})
    )


def rank_of(tensor: str) -> int:
    """Return the rank whose captured state has this leaf; 0 for leaves that the script saved."""
    match = STATE_OF_RANK.fullmatch(tensor)
    return int(match[1] or 0) if match is not None else 0


def _states(tensors: Sequence[TensorDelta]) -> dict[int, list[TensorDelta]]:
    states: dict[int, list[TensorDelta]] = {}
    for tensor in tensors:
        if STATE_OF_RANK.fullmatch(tensor.name):
            states.setdefault(rank_of(tensor.name), []).append(tensor)
    return states


def first_ranks(apart: Sequence[RankDifference], world_size: int) -> tuple[int, ...]:
    """Return the ranks that differ first; () if all ranks do.

    Within one step, an earlier kind of difference in one rank precedes a later kind in others.
    """
    if not apart:
        return ()
    first = _when(apart[0].first)
    ranks = tuple(rank.rank for rank in apart if _when(rank.first) == first)
    return ranks if len(ranks) < world_size else ()


def _when(event: Event) -> tuple[int | None, EventKind]:
    return event.step, event.kind
