"""What determinism costs here: strict over default, with an interval and a noise control.

Method: each run gives the durations of its steady steps (warm-up left out, twice that of the first
run of a call, which starts on a cold machine; observers outside the durations). The estimate is the
ratio of the pooled medians. The interval is a two-level bootstrap: runs are drawn with replacement,
then steps within them, so that differences between whole processes count (B. Efron and
R. Tibshirani, An Introduction to the Bootstrap, 1993, chapter 8.3: data with structure are
resampled by their structure). Where each run has enough steps in which the gate's own observing
took next to nothing, only those count: a GPU works beside the host, and what observing delayed it
by there cannot be told exactly. The control is one run over another of its own kind, default over
default and strict over strict, either way round: where machines are noisy, that is not one either,
and a cost inside that band is no finding. Runs go strict, default, default, strict, so that a speed
that drifts favours no side, and a cost counts as measured only when each strict run with the
default run beside it lies outside the band, on one side.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gate.records.comparison import CostState, DeterminismCost
from gate.records.evidence import RunEvidence
from gate.records.measure_settings import CostSettings
from gate.records.runs import RunMode

DRAWS = 2000
INTERVAL = (2.5, 97.5)
# of a step's time, the most that the harness may take in one that counts as undisturbed
UNDISTURBED = 0.02
Seconds = NDArray[np.float64]


def determinism_cost(
    strict: tuple[RunEvidence, ...], default: tuple[RunEvidence, ...], settings: CostSettings
) -> DeterminismCost:
    """Price strict mode on this workload, or say why it cannot be priced.

    `strict[i]` ran beside `default[i]`; `strict[0]` was the first run of all.
    """
    memory = memory_ratio(strict, default)
    # one default run has no other of its kind, so nothing says what this machine does by itself
    if not strict or len(default) < 2:  # noqa: PLR2004 - the control needs two runs
        return _not_measurable("too few runs in default mode", memory, 0)
    arms = [_steady_runs(runs, settings) for runs in (strict, default)]
    shortest = min(len(run) for arm in arms for run in arm)
    if shortest < settings.min_steps:
        needed = settings.warmup_steps + settings.min_steps
        reason = f"{shortest} steady steps are too few, a run takes {needed} at least"
        return _not_measurable(reason, memory, shortest)
    undisturbed = [_steady_runs(runs, settings, UNDISTURBED) for runs in (strict, default)]
    fewest = min(len(run) for arm in undisturbed for run in arm)
    if fewest >= settings.min_steps / 2:
        arms, shortest = undisturbed, fewest
    strict_seconds, default_seconds = (float(np.median(np.concatenate(arm))) for arm in arms)
    if any(np.min(run) <= 0 for arm in arms for run in arm):
        return _not_measurable("steps too fast for this clock", memory, shortest)
    # a fixed seed: the interval of the same evidence is the same in every report
    generator = np.random.default_rng(0)
    low, high = _interval(arms[0], arms[1], generator)
    band = _noise(arms, generator)
    apart = _apart(arms, band, generator) and (low > band[1] or high < band[0])
    return DeterminismCost(
        state=CostState.MEASURED if apart else CostState.INCONCLUSIVE,
        reason="" if apart else "not outside the noise of this machine",
        strict_step_seconds=strict_seconds,
        default_step_seconds=default_seconds,
        time_ratio=strict_seconds / default_seconds,
        low=low,
        high=high,
        control_low=band[0],
        control_high=band[1],
        memory_ratio=memory,
        steps_used=shortest,
    )


def _steady_runs(
    runs: tuple[RunEvidence, ...], settings: CostSettings, harness_share: float | None = None
) -> list[Seconds]:
    """The steady steps of each run; the very first run warms up twice as long, where it can."""
    # the first steps compile, allocate and fill caches: a price of starting and not of training
    found = [steady(run, settings.warmup_steps, harness_share) for run in runs]
    if runs[0].run.mode is RunMode.STRICT:
        warmer = steady(runs[0], 2 * settings.warmup_steps, harness_share)
        found[0] = warmer if len(warmer) >= settings.min_steps else found[0]
    return found


def _noise(arms: list[list[Seconds]], generator: np.random.Generator) -> tuple[float, float]:
    """The band in which a run lies over another of its own kind, symmetric about one."""
    ratios: list[float] = []
    for arm in arms:
        half = len(arm) // 2
        if half:
            ratios += _interval(arm[:half], arm[half:], generator)
    # which of two equal runs stands above the line is chance, so the band has no direction
    widest = max(max(ratio, 1 / ratio) for ratio in ratios)
    return 1 / widest, widest


def _apart(
    arms: list[list[Seconds]], band: tuple[float, float], generator: np.random.Generator
) -> bool:
    """Whether each strict run, with the default run beside it, lies outside, all on one side."""
    pairs = [_interval([one], [other], generator) for one, other in zip(*arms, strict=False)]
    # on one side: a machine that slows down halfway makes one pair dearer and the other cheaper
    return all(low > band[1] for low, _ in pairs) or all(high < band[0] for _, high in pairs)


def _not_measurable(reason: str, memory: float | None, steps: int) -> DeterminismCost:
    return DeterminismCost(
        state=CostState.NOT_MEASURABLE, reason=reason, memory_ratio=memory, steps_used=steps
    )


def steady(run: RunEvidence, warmup_steps: int, harness_share: float | None = None) -> Seconds:
    """Durations in seconds of the steps after the warm-up, shape (steps,).

    With a `harness_share`, without those in which the harness's own work took more than that share
    of the step's time.
    """
    later = [timing for timing in run.timings if timing.step > warmup_steps]
    if harness_share is not None:
        later = [one for one in later if one.harness_seconds <= harness_share * one.seconds]
    return np.array([timing.seconds for timing in later])


def _interval(
    numerator: list[Seconds], denominator: list[Seconds], generator: np.random.Generator
) -> tuple[float, float]:
    """The 95 % bootstrap interval of a ratio of medians."""
    ratios = _resampled(numerator, generator) / _resampled(denominator, generator)
    low, high = np.percentile(ratios, INTERVAL)
    return float(low), float(high)


def _resampled(runs: list[Seconds], generator: np.random.Generator) -> Seconds:
    """Medians of `DRAWS` samples, shape (DRAWS,): runs with replacement, then their steps."""
    medians = np.empty(DRAWS)
    for draw in range(DRAWS):
        # runs first: steps of one process share its memory layout and clock, and are no independent
        # draws
        chosen = generator.integers(len(runs), size=len(runs))
        steps = [generator.choice(runs[index], size=len(runs[index])) for index in chosen]
        medians[draw] = np.median(np.concatenate(steps))
    return medians


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
