"""Measure what determinism costs here: strict over default, with an interval and a noise control.

Steps: each run gives the durations of its steady steps, without observers. The warm-up is left out;
the first run of a call, on a cold machine, warms up twice as long. If each run has enough steps in
which the gate's own observing took next to nothing, only those count. A GPU works in parallel with
the host, so the delay by observing cannot be separated exactly.

Ratio: a strict run and the default run beside it are a round. Their ratio is free of what changed
between rounds. The figure is the geometric mean of the rounds' ratios (`paired_ratio`). Runs go
default, strict, strict, default, so that a drifting speed favours no side. Steps beside which a
different run was going do not count.

Interval: a two-level bootstrap, which draws rounds with replacement and, in each run of them, its
steps (B. Efron and R. Tibshirani, An Introduction to the Bootstrap, 1993, chapter 8.3). With few
rounds the bootstrap is too narrow by sqrt((n - 1) / n), so it is widened by that factor (T.
Hesterberg, What Teachers Should Know About the Bootstrap, The American Statistician 69, 2015,
section 3.2).

Control: one run over another of its own kind, default over default and strict over strict, in
either direction. On noisy machines this ratio is not one either, and a cost within that band is no
finding. A cost is measured only when each strict run, with the default run of its round, is outside
the band on the same side. A cost outside `PLAUSIBLE` is implausible: something other than
determinism changed the time of a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gate.comparison.differences import CostState, DeterminismCost
from gate.evidence.run_evidence import RunEvidence
from gate.evidence.step_columns import Timings
from gate.settings.levels import CostSettings

Span = tuple[float, float]


def timed_alone(
    runs: tuple[RunEvidence, ...], among: tuple[RunEvidence, ...], settings: CostSettings
) -> tuple[RunEvidence, ...]:
    """Return the runs with only the timings of steps beside which no run of `among` was going.

    If enough steps are left, those beside which a run was only starting are dropped too: an
    interpreter that imports uses the same memory and caches. Only the clock at the end of the first
    step and the durations are recorded, and the steps' times follow from them.
    """
    return tuple(
        _alone(run, [other for other in among if other is not run], settings) for run in runs
    )


def _alone(run: RunEvidence, others: list[RunEvidence], settings: CostSettings) -> RunEvidence:
    here = [
        neighbour for neighbour in others if neighbour.run.clock_seconds and run.run.clock_seconds
    ]
    going = [span for span in map(_going, here) if _overlap(span, _going(run))]
    starting = [span for span in map(_starting, here) if _overlap(span, _going(run))]
    if not going and not starting:
        return run
    if run.first_step_clock_seconds is None:
        # Without a clock, nothing shows when its steps were made.
        return run.model_copy(update={"timings": Timings()}) if going else run
    timings = _outside(run, [*going, *starting])
    if len(timings) < settings.warmup_steps + settings.min_steps:
        timings = _outside(run, going)
    return run.model_copy(update={"timings": timings})


def _outside(run: RunEvidence, beside: list[Span]) -> Timings:
    if not run.timings:
        # A training of one step has no duration between two steps.
        return run.timings
    durations = np.array(run.timings.seconds) + np.array(run.timings.harness_seconds)
    # Only durations are recorded, which saves a clock read per step. The ends follow from the first
    # one.
    ends = np.cumsum([run.first_step_clock_seconds or 0.0, *durations[1:]])
    begins = ends - durations
    kept = np.ones(len(ends), np.bool_)
    for begun, ended in beside:
        # The same test as `_overlap`, for all steps at once.
        kept &= np.maximum(begins, begun) >= np.minimum(ends, ended)
    return run.timings.chosen(kept.tolist())


def _going(run: RunEvidence) -> Span:
    begun = run.run.clock_seconds
    return begun, begun + run.run.wall_seconds


def _starting(run: RunEvidence) -> Span:
    """Return the span from the start of a run's process until it waited or was released."""
    started = run.run.started_seconds or run.run.clock_seconds
    return started, min(started + run.ready_seconds, run.run.clock_seconds)


def _overlap(left: Span, right: Span) -> bool:
    return max(left[0], right[0]) < min(left[1], right[1])


DRAWS = 2000
NUMBERS_AT_A_TIME = 100_000
INTERVAL = (2.5, 97.5)
MAX_STEPS = 2000
Seconds = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundOfRuns:
    """The step durations in seconds of a round's runs, as numerator and denominator of a ratio.

    Several runs on one side count with the geometric mean of their medians.
    """

    over: tuple[Seconds, ...]
    under: tuple[Seconds, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """A ratio with its 95 % interval."""

    value: float
    low: float
    high: float


def paired_ratio(rounds: tuple[RoundOfRuns, ...], seed: int = 0) -> Ratio:
    """Return the geometric mean of the rounds' ratios; equal input gives an equal interval.

    Every duration must be positive, which the caller checks.
    """
    generator = np.random.default_rng(seed)
    estimate = float(np.mean([_log_of(runs.over) - _log_of(runs.under) for runs in rounds]))
    drawn = np.stack(
        [_drawn(runs.over, generator) - _drawn(runs.under, generator) for runs in rounds]
    )
    count = len(rounds)
    # Draw whole rounds: the arms of one round share what the machine did at that time.
    chosen = generator.integers(count, size=(DRAWS, count))
    means = drawn[chosen, np.arange(DRAWS)[:, None]].mean(axis=1)
    # The bootstrap's variance divides by n where the sample's divides by n - 1.
    widening = math.sqrt(count / (count - 1)) if count > 1 else 1.0
    low, high = np.percentile(means, INTERVAL)
    return Ratio(
        value=math.exp(estimate),
        # Never past the estimate: with few rounds all draws may be on one side of it.
        low=math.exp(estimate + min(0.0, float(low) - estimate) * widening),
        high=math.exp(estimate + max(0.0, float(high) - estimate) * widening),
    )


def noise_band(controls: Iterable[Ratio]) -> float:
    """Return how much equal work varies here, as a factor of at least one.

    The band applies in both directions: which of two equal runs came first means nothing. Without
    controls nothing is known, and the factor is one.
    """
    return max((max(control.high, 1 / control.low) for control in controls), default=1.0)


def typical_seconds(runs: tuple[Seconds, ...]) -> float:
    """Return the geometric mean of the runs' medians; two sides' quotient is `paired_ratio`."""
    return math.exp(_log_of(runs))


def _log_of(runs: tuple[Seconds, ...]) -> float:
    return float(np.mean([math.log(np.median(run)) for run in runs]))


def _drawn(runs: tuple[Seconds, ...], generator: np.random.Generator) -> Seconds:
    """Return logarithms of resampled medians, averaged over one side's runs, shape (DRAWS,)."""
    return np.asarray(np.mean([_medians(run, generator) for run in runs], axis=0))


def _medians(run: Seconds, generator: np.random.Generator) -> Seconds:
    # With some thousand steps, the median is already known far better than rounds agree.
    steps = run[:MAX_STEPS]
    # Draw in portions: for a long run, all draws together take a hundred megabytes.
    at_a_time = min(DRAWS, NUMBERS_AT_A_TIME // len(steps))
    sizes = [min(at_a_time, DRAWS - first) for first in range(0, DRAWS, at_a_time)]
    samples = (generator.integers(len(steps), size=(n, len(steps)), dtype=np.int32) for n in sizes)
    medians: Seconds = np.concatenate([np.median(steps[sample], axis=1) for sample in samples])
    return np.log(medians)


# The largest share of a step's time that the harness may take in an undisturbed step.
UNDISTURBED = 0.02
# As ratios: from half the time of a step to four times that.
PLAUSIBLE = (0.5, 4.0)


def determinism_cost(
    strict: tuple[RunEvidence, ...], default: tuple[RunEvidence, ...], settings: CostSettings
) -> DeterminismCost:
    """Return the cost of strict mode on this workload, or why it cannot be measured.

    `strict[i]` and `default[i]` are a round. Steps beside which a different run was going do not
    count.
    """
    whole = (*strict, *default)
    strict, default = (timed_alone(runs, whole, settings) for runs in (strict, default))
    memory = memory_ratio(strict, default)
    # A single default run has no control, so the noise of this machine is unknown.
    if not strict or len(default) < 2:  # noqa: PLR2004 - the control needs two runs
        return _not_measurable("too few runs in default mode", memory, 0)
    # The first run of the call starts on a cold machine.
    coldest = min(whole, key=lambda run: run.run.begun_seconds).run.label
    arms = [_steady_runs(runs, settings, coldest) for runs in (strict, default)]
    shortest = min(len(run) for arm in arms for run in arm)
    if shortest < settings.min_steps:
        reason = too_few_steps(whole, (*strict, *default), settings, settings.min_steps)
        return _not_measurable(reason, memory, shortest)
    undisturbed = [_steady_runs(runs, settings, coldest, UNDISTURBED) for runs in (strict, default)]
    fewest = min(len(run) for arm in undisturbed for run in arm)
    if fewest >= settings.min_steps / 2:
        arms, shortest = undisturbed, fewest
    if any(np.min(run) <= 0 for arm in arms for run in arm):
        return _not_measurable("steps too short for this clock", memory, shortest)
    rounds = tuple(
        RoundOfRuns(over=(left,), under=(right,)) for left, right in zip(*arms, strict=False)
    )
    strict_seconds, default_seconds = (typical_seconds(tuple(arm[: len(rounds)])) for arm in arms)
    ratio, band = paired_ratio(rounds), noise_band(_controls(arms))
    apart = _on_one_side((ratio, *(paired_ratio((round_,)) for round_ in rounds)), band)
    state, reason = judged_ratio(ratio.value, "" if apart else "within the noise of this machine")
    return DeterminismCost(
        state=state,
        reason=reason,
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


def judged_ratio(ratio: float, inconclusive: str) -> tuple[CostState, str]:
    """Return how reliable a ratio is and why; `inconclusive` is a known objection, or ""."""
    if inconclusive:
        return CostState.INCONCLUSIVE, inconclusive
    low, high = PLAUSIBLE
    if not low <= round(ratio, 6) <= high:
        bounds = f"{(low - 1) * 100:+.0f} % to {(high - 1) * 100:+.0f} %"
        return CostState.IMPLAUSIBLE, (
            f"outside {bounds}; check what else changes the time of a step between the modes"
        )
    return CostState.MEASURED, ""


def too_few_steps(
    whole: tuple[RunEvidence, ...],
    alone: tuple[RunEvidence, ...],
    settings: CostSettings,
    least: int,
) -> str:
    """Return why steps are missing: the runs are too short, or too often ran side by side.

    `alone` are the runs of `whole` with only the steps that ran alone.
    """
    steps = min(len(steady(run, settings.warmup_steps)) for run in whole)
    if steps < least:
        sentence = "1 steady step is" if steps == 1 else f"{steps} steady steps are"
        after = f" after its warm-up of {settings.warmup_steps}" if settings.warmup_steps else ""
        return f"{sentence} too few; a run needs at least {least}{after}"
    labels = [run.run.label for run in alone if len(steady(run, settings.warmup_steps)) < least]
    return (
        f"{' and '.join(labels)} ran side by side with another run for too many steps; "
        "runs.parallel: never times them alone"
    )


def _steady_runs(
    runs: tuple[RunEvidence, ...],
    settings: CostSettings,
    coldest: str,
    harness_share: float | None = None,
) -> list[Seconds]:
    """Return each run's steady steps; the coldest warms up twice as long if it is long enough."""
    # The first steps compile, allocate and fill caches: that is the cost of starting, not of
    # training.
    durations = [steady(run, settings.warmup_steps, harness_share) for run in runs]
    if runs[0].run.label == coldest:
        warmer = steady(runs[0], 2 * settings.warmup_steps, harness_share)
        durations[0] = warmer if len(warmer) >= settings.min_steps else durations[0]
    return durations


def _controls(arms: list[list[Seconds]]) -> list[Ratio]:
    """Return one half of an arm's runs over the other half, for each arm with at least two runs."""
    halves = [(arm[: len(arm) // 2], arm[len(arm) // 2 :]) for arm in arms if len(arm) > 1]
    return [paired_ratio((RoundOfRuns(over=tuple(a), under=tuple(b)),)) for a, b in halves]


def _on_one_side(ratios: tuple[Ratio, ...], band: float) -> bool:
    """Return whether all intervals are outside the band, and all on the same side."""
    return all(ratio.low > band for ratio in ratios) or all(
        ratio.high < 1 / band for ratio in ratios
    )


def _not_measurable(reason: str, memory: float | None, steps: int) -> DeterminismCost:
    return DeterminismCost(
        state=CostState.NOT_MEASURABLE, reason=reason, memory_ratio=memory, steps_used=steps
    )


def steady(run: RunEvidence, warmup_steps: int, harness_share: float | None = None) -> Seconds:
    """Return the durations in seconds of the steps after the warm-up, shape (steps,).

    With `harness_share`, steps are left out in which the harness took more than that share of the
    time.
    """
    later = _later_steps(run, warmup_steps, harness_share)
    return np.array(later.seconds, np.float64)


def steady_steps(runs: tuple[RunEvidence, ...], settings: CostSettings) -> list[Timings]:
    """Return each run's steps after the warm-up: undisturbed ones if each run has enough."""
    undisturbed = [_later_steps(run, settings.warmup_steps, UNDISTURBED) for run in runs]
    if min(map(len, undisturbed), default=0) >= settings.min_steps / 2:
        return undisturbed
    return [_later_steps(run, settings.warmup_steps, None) for run in runs]


def _later_steps(run: RunEvidence, warmup_steps: int, harness_share: float | None) -> Timings:
    timings = run.timings
    kept = np.array(timings.steps) > warmup_steps
    if harness_share is not None:
        kept &= np.array(timings.harness_seconds) <= harness_share * np.array(timings.seconds)
    return timings.chosen(kept.tolist())


def memory_ratio(strict: tuple[RunEvidence, ...], default: tuple[RunEvidence, ...]) -> float | None:
    """Return peak memory, strict over default: the device's if one was used, else the process's."""
    # Device memory counts only if every run used it: a ratio of device to host memory means
    # nothing.
    on_device = all(run.device_memory_bytes > 0 for run in (*strict, *default))
    peaks = [
        [run.device_memory_bytes if on_device else run.peak_memory_bytes for run in runs]
        for runs in (strict, default)
    ]
    if not all(peaks) or not all(all(arm) for arm in peaks):
        return None
    return float(np.median(peaks[0]) / np.median(peaks[1]))
