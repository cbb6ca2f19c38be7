"""What determinism costs here: strict over default, with an interval and a noise control.

Within a round the arms stand beside each other in time, so their ratio is free of what changed
between rounds; the figure is the geometric mean of the rounds' ratios. The interval is a two-level
bootstrap: rounds are drawn with replacement and, in each run of them, its steps (B. Efron and
R. Tibshirani, An Introduction to the Bootstrap, 1993, chapter 8.3). With few rounds the bootstrap
is too narrow by sqrt((n - 1) / n); it is widened by that (T. Hesterberg, What Teachers Should Know
About the Bootstrap, The American Statistician 69, 2015, section 3.2).

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
band, on one side. A cost outside `PLAUSIBLE` counts as implausible: something else than determinism
changed the time of a step.
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
    """The same runs with the timings of only those steps beside which no run of `among` went.

    Where enough are left, nor are those timed beside which one only started: an interpreter that
    imports uses the same memory and caches. When steps were made is known from the clock at the end
    of the first, and their durations.
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
        # without a clock nothing says when its steps were made
        return run.model_copy(update={"timings": Timings()}) if going else run
    timings = _outside(run, [*going, *starting])
    if len(timings) < settings.warmup_steps + settings.min_steps:
        timings = _outside(run, going)
    return run.model_copy(update={"timings": timings})


def _outside(run: RunEvidence, beside: list[Span]) -> Timings:
    if not run.timings:
        # a training of one step has no duration between two steps
        return run.timings
    durations = np.array(run.timings.seconds) + np.array(run.timings.harness_seconds)
    # only durations are recorded: the ends follow from the first one, without a clock read per step
    ends = np.cumsum([run.first_step_clock_seconds or 0.0, *durations[1:]])
    begins = ends - durations
    kept = np.ones(len(ends), np.bool_)
    for begun, ended in beside:
        # as `_overlap`, of all steps
        kept &= np.maximum(begins, begun) >= np.minimum(ends, ended)
    return run.timings.chosen(kept.tolist())


def _going(run: RunEvidence) -> Span:
    begun = run.run.clock_seconds
    return begun, begun + run.run.wall_seconds


def _starting(run: RunEvidence) -> Span:
    """From the start of its process until it waited, or was let go."""
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
    """The step durations in seconds of the runs that stood above and below the line in a round.

    Several runs on one side count by the geometric mean of their medians.
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
    """The geometric mean of the rounds' ratios; the same input gives the same interval.

    Every duration must be positive; the caller has looked.
    """
    generator = np.random.default_rng(seed)
    estimate = float(np.mean([_log_of(runs.over) - _log_of(runs.under) for runs in rounds]))
    drawn = np.stack(
        [_drawn(runs.over, generator) - _drawn(runs.under, generator) for runs in rounds]
    )
    count = len(rounds)
    # whole rounds are drawn: the arms of one share what the machine did then
    chosen = generator.integers(count, size=(DRAWS, count))
    means = drawn[chosen, np.arange(DRAWS)[:, None]].mean(axis=1)
    # the bootstrap's variance has n in its denominator where the sample's has n - 1
    widening = math.sqrt(count / (count - 1)) if count > 1 else 1.0
    low, high = np.percentile(means, INTERVAL)
    return Ratio(
        value=math.exp(estimate),
        # never past the estimate: with few rounds all draws may lie on one side of it
        low=math.exp(estimate + min(0.0, float(low) - estimate) * widening),
        high=math.exp(estimate + max(0.0, float(high) - estimate) * widening),
    )


def noise_band(controls: Iterable[Ratio]) -> float:
    """How much equal work varies here, as a factor of at least one.

    It holds in both directions: which of two equal runs came first means nothing. One without
    controls: nothing is known then.
    """
    return max((max(control.high, 1 / control.low) for control in controls), default=1.0)


def typical_seconds(runs: tuple[Seconds, ...]) -> float:
    """The geometric mean of the runs' medians: of two sides, the quotient is `paired_ratio`."""
    return math.exp(_log_of(runs))


def _log_of(runs: tuple[Seconds, ...]) -> float:
    return float(np.mean([math.log(np.median(run)) for run in runs]))


def _drawn(runs: tuple[Seconds, ...], generator: np.random.Generator) -> Seconds:
    """Logarithms of resampled medians, shape (DRAWS,), the mean over the runs of one side."""
    return np.asarray(np.mean([_medians(run, generator) for run in runs], axis=0))


def _medians(run: Seconds, generator: np.random.Generator) -> Seconds:
    # Beyond some thousand steps the median is known far better than rounds agree.
    steps = run[:MAX_STEPS]
    # some draws at a time: of a long run, all of them together take a hundred megabytes
    at_a_time = min(DRAWS, NUMBERS_AT_A_TIME // len(steps))
    sizes = [min(at_a_time, DRAWS - first) for first in range(0, DRAWS, at_a_time)]
    samples = (generator.integers(len(steps), size=(n, len(steps)), dtype=np.int32) for n in sizes)
    medians: Seconds = np.concatenate([np.median(steps[sample], axis=1) for sample in samples])
    return np.log(medians)


# of a step's time, the most that the harness may take in one that counts as undisturbed
UNDISTURBED = 0.02
# as ratios: from half the time of a step to four times that
PLAUSIBLE = (0.5, 4.0)


def determinism_cost(
    strict: tuple[RunEvidence, ...], default: tuple[RunEvidence, ...], settings: CostSettings
) -> DeterminismCost:
    """The cost of strict mode on this workload, or why it cannot be measured.

    `strict[i]` and `default[i]` are a round; steps beside which another run went do not count.
    """
    whole = (*strict, *default)
    strict, default = (timed_alone(runs, whole, settings) for runs in (strict, default))
    memory = memory_ratio(strict, default)
    # one default run has no other of its kind, so nothing says what this machine does by itself
    if not strict or len(default) < 2:  # noqa: PLR2004 - the control needs two runs
        return _not_measurable("too few runs in default mode", memory, 0)
    # the very first run of the call starts on a cold machine
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
    """How much a ratio means, and why no more; `inconclusive` says what speaks against it."""
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
    """Why steps are missing: the runs are too short, or too many steps had another run beside them.

    `alone` are the runs of `whole` with only those steps that ran alone.
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
    timings = run.timings
    kept = np.array(timings.steps) > warmup_steps
    if harness_share is not None:
        kept &= np.array(timings.harness_seconds) <= harness_share * np.array(timings.seconds)
    return timings.chosen(kept.tolist())


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
