"""What determinism costs here: strict over default, with an interval and a noise control.

Method: each run gives the durations of its steady steps (warm-up left out, twice that of the first
run of a call, which starts on a cold machine; observers outside the durations). A strict run and
the default run beside it are a round; `bootstrap.py` makes the ratio and its interval. Where each
run has enough steps in which the gate's own observing took next to nothing, only those count: a GPU
works beside the host, and what observing delayed it by there cannot be told exactly.
The control is one run over another of its own kind, default over default and strict over strict,
either way round: where machines are noisy, that is not one either, and a cost inside that band is
no finding. Runs go default, strict, strict, default, so that a speed that drifts favours no side;
where the strict ones go beside each other for a while, steps of that while do not count. A cost
counts as measured only when each strict run with the default run of its round lies outside the
band, on one side.
"""

from __future__ import annotations

import numpy as np

from gate.comparison.measuring.bootstrap import (
    Ratio,
    RoundOfRuns,
    Seconds,
    noise_band,
    paired_ratio,
)
from gate.comparison.measuring.undisturbed import timed_alone
from gate.records.comparison import CostState, DeterminismCost
from gate.records.observed.columns.timings import Timings
from gate.records.observed.evidence import RunEvidence
from gate.records.sections.measuring import CostSettings

# of a step's time, the most that the harness may take in one that counts as undisturbed
UNDISTURBED = 0.02


def determinism_cost(
    strict: tuple[RunEvidence, ...], default: tuple[RunEvidence, ...], settings: CostSettings
) -> DeterminismCost:
    """The cost of strict mode on this workload, or why it cannot be measured.

    `strict[i]` and `default[i]` are a round; steps beside which another run went do not count.
    """
    both = (*strict, *default)
    strict, default = (timed_alone(runs, both, settings) for runs in (strict, default))
    memory = memory_ratio(strict, default)
    # one default run has no other of its kind, so nothing says what this machine does by itself
    if not strict or len(default) < 2:  # noqa: PLR2004 - the control needs two runs
        return _not_measurable("too few runs in default mode", memory, 0)
    # the very first run of the call starts on a cold machine
    coldest = min(both, key=lambda run: run.run.begun_seconds).run.label
    arms = [_steady_runs(runs, settings, coldest) for runs in (strict, default)]
    shortest = min(len(run) for arm in arms for run in arm)
    if shortest < settings.min_steps:
        needed = settings.warmup_steps + settings.min_steps
        reason = f"{shortest} steady steps are too few; a run needs at least {needed}"
        return _not_measurable(reason, memory, shortest)
    undisturbed = [_steady_runs(runs, settings, coldest, UNDISTURBED) for runs in (strict, default)]
    fewest = min(len(run) for arm in undisturbed for run in arm)
    if fewest >= settings.min_steps / 2:
        arms, shortest = undisturbed, fewest
    strict_seconds, default_seconds = (float(np.median(np.concatenate(arm))) for arm in arms)
    if any(np.min(run) <= 0 for arm in arms for run in arm):
        return _not_measurable("steps too short for this clock", memory, shortest)
    rounds = tuple(
        RoundOfRuns(over=(one,), under=(other,)) for one, other in zip(*arms, strict=False)
    )
    ratio, band = paired_ratio(rounds), noise_band(_controls(arms))
    apart = _on_one_side((ratio, *(paired_ratio((one,)) for one in rounds)), band)
    return DeterminismCost(
        state=CostState.MEASURED if apart else CostState.INCONCLUSIVE,
        reason="" if apart else "within the noise of this machine",
        strict_step_seconds=strict_seconds,
        default_step_seconds=default_seconds,
        time_ratio=ratio.value,
        low=ratio.low,
        high=ratio.high,
        control_low=1 / band,
        control_high=band,
        memory_ratio=memory,
        steps_used=shortest,
    )


def _steady_runs(
    runs: tuple[RunEvidence, ...],
    settings: CostSettings,
    coldest: str,
    harness_share: float | None = None,
) -> list[Seconds]:
    """The steady steps of each run; the coldest warms up twice as long, where it can."""
    # the first steps compile, allocate and fill caches: a price of starting and not of training
    durations = [steady(run, settings.warmup_steps, harness_share) for run in runs]
    if runs[0].run.label == coldest:
        warmer = steady(runs[0], 2 * settings.warmup_steps, harness_share)
        durations[0] = warmer if len(warmer) >= settings.min_steps else durations[0]
    return durations


def _controls(arms: list[list[Seconds]]) -> list[Ratio]:
    """One half of the runs of an arm over the other half, for each arm that has two."""
    halves = [(arm[: len(arm) // 2], arm[len(arm) // 2 :]) for arm in arms if len(arm) > 1]
    return [paired_ratio((RoundOfRuns(over=tuple(a), under=tuple(b)),)) for a, b in halves]


def _on_one_side(ratios: tuple[Ratio, ...], band: float) -> bool:
    """Whether all intervals lie outside the band, above it or below it."""
    return all(ratio.low > band for ratio in ratios) or all(
        ratio.high < 1 / band for ratio in ratios
    )


def _not_measurable(reason: str, memory: float | None, steps: int) -> DeterminismCost:
    return DeterminismCost(
        state=CostState.NOT_MEASURABLE, reason=reason, memory_ratio=memory, steps_used=steps
    )


def steady(run: RunEvidence, warmup_steps: int, harness_share: float | None = None) -> Seconds:
    """Durations in seconds of the steps after the warm-up, shape (steps,).

    With a `harness_share`, without those in which the harness's own work took more than that share
    of the step's time.
    """
    later = _later_steps(run, warmup_steps, harness_share)
    return np.array(later.seconds, np.float64)


def steady_steps(runs: tuple[RunEvidence, ...], settings: CostSettings) -> list[Timings]:
    """The steps of each run after the warm-up: undisturbed ones where each run has enough."""
    undisturbed = [_later_steps(run, settings.warmup_steps, UNDISTURBED) for run in runs]
    if min(map(len, undisturbed), default=0) >= settings.min_steps / 2:
        return undisturbed
    return [_later_steps(run, settings.warmup_steps, None) for run in runs]


def _later_steps(run: RunEvidence, warmup_steps: int, harness_share: float | None) -> Timings:
    later = (row for row in run.timings.rows() if row[0] > warmup_steps)
    if harness_share is None:
        return Timings(later)
    return Timings(
        (step, seconds, harness_seconds, samples)
        for step, seconds, harness_seconds, samples in later
        if harness_seconds <= harness_share * seconds
    )


def memory_ratio(strict: tuple[RunEvidence, ...], default: tuple[RunEvidence, ...]) -> float | None:
    """Peak memory, strict over default: the device's when one was used, else the process's."""
    # all or none: a ratio of device memory over host memory means nothing
    on_device = all(run.device_memory_bytes > 0 for run in (*strict, *default))
    peaks = [
        [run.device_memory_bytes if on_device else run.peak_memory_bytes for run in runs]
        for runs in (strict, default)
    ]
    if not all(peaks) or not all(all(arm) for arm in peaks):
        return None
    return float(np.median(peaks[0]) / np.median(peaks[1]))
