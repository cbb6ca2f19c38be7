"""Measure throughput and run-time variance of the runs of one kind.

Only steps after the warm-up count, without the harness's own time. If each run has enough steps in
which the harness took next to nothing, only those count (see `cost.py`). Variances within runs are
pooled by their degrees of freedom (NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.5.3).
"""

from __future__ import annotations

import math

import numpy as np

from gate.comparison.cost import Seconds, steady_steps, timed_alone, too_few_steps
from gate.comparison.level_records import Performance
from gate.evidence.run_evidence import RunEvidence
from gate.evidence.step_columns import UNKNOWN, Timings
from gate.settings.levels import CostSettings
from gate.training.runs import Commit, RunMode

KINDS = tuple(
    (commit, mode)
    for commit in (Commit.HEAD, Commit.BASE)
    for mode in (RunMode.STRICT, RunMode.DEFAULT)
)
# A single step has no deviation.
LEAST_STEPS = 2


def performance_of(
    runs: tuple[RunEvidence, ...], settings: CostSettings
) -> tuple[Performance, ...]:
    """Return figures for each kind of run: head before base, strict before default."""
    alone = timed_alone(runs, runs, settings)
    made = {
        kind: [pair for pair in zip(runs, alone, strict=True) if _kind(pair[0]) == kind]
        for kind in KINDS
    }
    return tuple(_of_kind(kind, pairs, settings) for kind, pairs in made.items() if pairs)


def _kind(run: RunEvidence) -> tuple[Commit, RunMode]:
    return run.run.commit, run.run.mode


def _of_kind(
    kind: tuple[Commit, RunMode],
    pairs: list[tuple[RunEvidence, RunEvidence]],
    settings: CostSettings,
) -> Performance:
    """Return the figures of runs; each pair is a run and its copy with steps that ran alone."""
    whole, runs = tuple(zip(*pairs, strict=True))
    measured = Performance(
        commit=kind[0],
        mode=kind[1],
        runs=len(runs),
        peak_memory_bytes=int(np.median([run.peak_memory_bytes for run in runs])),
        device_memory_bytes=int(np.median([run.device_memory_bytes for run in runs])),
    )
    timings = steady_steps(runs, settings)
    fewest = min(map(len, timings))
    seconds = [np.array(steps.seconds, np.float64) for steps in timings]
    reason = ""
    if fewest < LEAST_STEPS:
        reason = too_few_steps(whole, runs, settings, LEAST_STEPS)
    elif not all(float(run.sum()) > 0 for run in seconds):
        reason = "steps too short for this clock"
    if reason:
        return measured.model_copy(update={"steps_used": sum(map(len, timings)), "reason": reason})
    return measured.model_copy(update=_figures(seconds, _samples(timings)))


def _figures(seconds: list[Seconds], samples: int | None) -> dict[str, float | None]:
    steps = sum(map(len, seconds))
    total = float(sum(run.sum() for run in seconds))
    mean = total / steps
    means = [float(run.mean()) for run in seconds]
    squares = sum(float(((run - run.mean()) ** 2).sum()) for run in seconds)
    # Each run's own mean takes one degree of freedom.
    within = math.sqrt(squares / (steps - len(seconds)))
    between = float(np.std(means, ddof=1)) if len(means) > 1 else None
    return {
        "steps_used": steps,
        "steps_per_second": steps / total,
        "samples_per_second": None if samples is None else samples / total,
        "step_seconds": mean,
        "median_step_seconds": float(np.median([np.median(run) for run in seconds])),
        "step_deviation_seconds": within,
        "step_variation": within / mean,
        "run_deviation_seconds": between,
        "run_variation": None if between is None else between / float(np.mean(means)),
    }


def _samples(timings: list[Timings]) -> int | None:
    """Return all samples of these steps; None if one is unknown, or no DataLoader was used."""
    if any(UNKNOWN in steps.samples for steps in timings):
        return None
    # Python's integers cannot overflow, whatever an untrusted record contains.
    return sum(sum(steps.samples) for steps in timings) or None
