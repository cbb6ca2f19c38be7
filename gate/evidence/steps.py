"""Combine the step lines of all optimizers and ranks: one digest and one duration for each step."""

from __future__ import annotations

import math
from array import array
from itertools import pairwise

import numpy as np

from gate.evidence.columns import Memory
from gate.evidence.harness_files import StepLine
from gate.evidence.ranks import TrainedRank
from gate.evidence.run_evidence import RecorderCost
from gate.evidence.step_columns import (
    PARAMETERS,
    SAMPLING,
    UNKNOWN,
    StepDigest,
    StepDigests,
    Timings,
    family_of,
    of_optimizer,
)
from gate.evidence.step_lines import NOTHING, Column
from gate.evidence.step_work import MAX_OPTIMIZER_SETTINGS, StepGiven, is_told, only_changes
from gate.text.digests import field, sha256_hex

# Above this number, all optimizers share their fingerprints: some scripts have one for each
# parameter.
APART = 8
SETTING = "state/optimizer/{optimizer}/group/{path}"
Parts = list[tuple[str, str]]


def step_digests(ranks: tuple[TrainedRank, ...]) -> StepDigests:
    """Return the digests of each step, by fingerprint.

    With one rank and one optimizer these are the harness's own digests. Otherwise each is the
    SHA-256 over the length-prefixed parts `rank:optimizer:digest`, with the ranks in order and the
    optimizers as they stepped.

    Up to `APART` optimizers keep separate fingerprints, because the update of one may come between
    two passes of the next. Those after the first are named `<fingerprint>.<i>`.

    A fingerprint counts as observed only if every rank and optimizer observed it. Each rank chooses
    its own sampling intervals, and a digest over some ranks cannot be compared with one over all.
    """
    steps = np.unique(np.concatenate([rank.lines.column("step") for rank in ranks]))
    numbers = {number for rank in ranks for number in rank.lines.optimizers}
    apart = 1 < len(numbers) <= APART
    # most steps were not observed and have no record, so look only at the others
    observed = np.unique(
        np.concatenate([rank.lines.column("step")[rank.lines.observed] for rank in ranks])
    )
    by_step: dict[int, list[tuple[str, StepLine]]] = {}
    for rank in ranks:
        for place in np.flatnonzero(np.isin(rank.lines.column("step"), observed)).tolist():
            line = rank.lines[place]
            by_step.setdefault(line.step, []).append((f"{rank.files.rank}:{line.optimizer}", line))
    places = np.searchsorted(steps, observed).tolist()
    digests = [
        (place, _digest(step, by_step[step], apart=apart))
        for place, step in zip(places, observed.tolist(), strict=True)
    ]
    return StepDigests(steps.tolist(), digests)


def _digest(step: int, lines: list[tuple[str, StepLine]], *, apart: bool) -> StepDigest:
    fingerprints: dict[str, Parts] = {}
    left_out = {group for _, line in lines for group in line.unobserved}
    for place, line in lines:
        digests = line.fingerprints
        if apart and line.parameters is not None:
            # the parameters of each optimizer alone; the digest over all of them is
            # `StepDigest.parameters`
            digests = {**digests, f"{PARAMETERS}.0": line.parameters}
        for fingerprint, digest in digests.items():
            if SAMPLING.get(family_of(fingerprint)) not in left_out:
                name = of_optimizer(fingerprint, line.optimizer) if apart else fingerprint
                fingerprints.setdefault(name, []).append((place, digest))
    parameters = [(place, line.parameters) for place, line in lines if line.parameters is not None]
    return StepDigest(
        step=step,
        parameters=_combined(parameters) if len(parameters) == len(lines) else "",
        fingerprints={
            fingerprint: _combined(parts) for fingerprint, parts in sorted(fingerprints.items())
        },
    )


def _combined(parts: Parts) -> str:
    if len(parts) == 1:
        return parts[0][1]
    # with their lengths, so that different lists of parts never give the same bytes
    joined = b"".join(field(f"{place}:{digest}".encode("ascii")) for place, digest in parts)
    return f"sha256:{sha256_hex(joined)}"


def step_given(rank: TrainedRank) -> tuple[StepGiven, ...]:
    """Return what each reported step was given, where it differs from the reported step before."""
    steps: dict[int, list[StepLine]] = {}
    after: dict[int, dict[str, int]] = {}
    numbers, optimizers = rank.lines.column("step"), rank.lines.column("optimizer")
    # the number of steps that the first optimizer had taken by each line; it never decreases
    leading = np.maximum.accumulate(np.where(optimizers == 0, numbers, 0))
    kept_steps = [step for step in np.unique(numbers).tolist() if is_told(step)]
    for place in np.flatnonzero(np.isin(numbers, kept_steps)).tolist():
        line = rank.lines[place]
        steps.setdefault(line.step, []).append(line)
        if leading[place] != line.step and line.optimizer < APART:
            after.setdefault(line.step, {})[str(line.optimizer)] = int(leading[place])
    behind = _trained_later(optimizers, leading)
    known: dict[str, str] = {}
    kinds: dict[str, str] = {}
    given = []
    for step, lines in sorted(steps.items()):
        together = [line for line in lines if line.optimizer not in behind] or lines
        for line in lines:
            own = {
                SETTING.format(optimizer=line.optimizer, path=path): word
                for path, word in (line.settings or {}).items()
            }
            known |= {name: word for name, word in own.items() if name in known or _room(known)}
            if line.kind and line.optimizer < APART:
                kinds[str(line.optimizer)] = line.kind
        passes = sum(line.backwards for line in together)
        samples = _samples(together)
        given.append(
            StepGiven(
                step=step,
                samples=samples,
                # if a DataLoader counted the samples, no shape is needed
                rows=None if samples else _rows(together),
                after=after.get(step, {}),
                passes=passes,
                settings=known,
                kinds=kinds,
            )
        )
    return only_changes(given)


def _trained_later(optimizers: Column, leading: Column) -> frozenset[int]:
    """Return the optimizers that begin after the last step of the first one, as in later folds.

    Their steps have the same numbers as its steps, and are otherwise unrelated.
    """
    numbers, places = np.unique(optimizers, return_index=True)
    total = leading.max(initial=0)
    began = zip(numbers.tolist(), leading[places].tolist(), strict=True)
    return frozenset(number for number, turn in began if number and turn == total > 1)


def _room(known: dict[str, str]) -> bool:
    return len(known) < MAX_OPTIMIZER_SETTINGS


def step_timings(rank: TrainedRank) -> Timings:
    """Return the seconds of each step, summed over its optimizers.

    A step without a time for every optimizer is left out.
    """
    order, first = rank.lines.by_step()
    columns = [
        rank.lines.column(name)[order] for name in ("step", "seconds", "harness_seconds", "samples")
    ]
    if len(first) == len(order):
        # fast path for one optimizer, which nearly all trainings have: there is nothing to sum
        timed = ~np.isnan(columns[1])
        kinds = zip(Timings.kinds, columns, strict=True)
        # adding 0 turns -0.0 into 0.0, as the sums below do
        return Timings(
            columns=[array(kind, (column[timed] + 0).tobytes()) for kind, column in kinds]
        )
    steps, seconds, harness_seconds, samples = (column.tolist() for column in columns)
    timings: list[tuple[int, float, float, int]] = []
    for begin, end in pairwise([*first.tolist(), len(order)]):
        own = sum(seconds[begin:end])
        # the sum is NaN if one of the optimizers has no time
        if not math.isnan(own):
            counts = samples[begin:end]
            count = UNKNOWN if NOTHING in counts else sum(counts)
            timings.append((steps[begin], own, sum(harness_seconds[begin:end]), count))
    return Timings(timings)


def _samples(lines: list[StepLine]) -> int | None:
    """Return all samples that were read for a step, or None if a batch had no known size."""
    known = [line.samples for line in lines if line.samples is not None]
    return sum(known) if len(known) == len(lines) else None


def _rows(lines: list[StepLine]) -> int | None:
    """Return the sum of the first dimensions of the model's inputs, or None if one is unknown."""
    known = [line.rows for line in lines if line.rows is not None]
    return sum(known) or None if len(known) == len(lines) else None


def step_memory(rank: TrainedRank) -> Memory:
    """Return the memory after each step; of several optimizers, the largest number counts."""
    steps, resident = rank.lines.largest("memory_bytes")
    _, device = rank.lines.largest("device_bytes")
    kinds = zip(Memory.kinds, (steps, resident, device), strict=True)
    return Memory(columns=[array(kind, column.tobytes()) for kind, column in kinds])


def recorder_cost(ranks: tuple[TrainedRank, ...]) -> RecorderCost:
    """Return the time that observing took on rank 0, and the sampling intervals.

    Steps without a time are left out of both sums.
    """
    lines = ranks[0].lines
    seconds = lines.column("seconds")
    timed = ~np.isnan(seconds)
    sampling_intervals: dict[str, int] = {}
    for rank in ranks:
        for group, sampling_interval in rank.summary.sampling_intervals.items():
            # A step is compared only if every rank observed it, so the widest interval counts.
            sampling_intervals[group] = max(sampling_interval, sampling_intervals.get(group, 1))
    return RecorderCost(
        observe_seconds=sum(lines.column("observe_seconds")[timed].tolist()),
        step_seconds=sum(seconds[timed].tolist()),
        sampling_intervals=sampling_intervals,
    )
