"""Ratios of step times with an interval, from runs that were measured in rounds.

Within a round the arms stand beside each other in time, so their ratio is free of what changed
between rounds; the figure is the geometric mean of the rounds' ratios. The interval is a two-level
bootstrap: rounds are drawn with replacement and, in each run of them, its steps (B. Efron and
R. Tibshirani, An Introduction to the Bootstrap, 1993, chapter 8.3). With few rounds the bootstrap
is too narrow by sqrt((n - 1) / n); it is widened by that (T. Hesterberg, What Teachers Should Know
About the Bootstrap, The American Statistician 69, 2015, section 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DRAWS = 2000
DRAWS_AT_A_TIME = 50
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
    # some draws at a time: all of them together take a hundred megabytes
    sizes = [min(DRAWS_AT_A_TIME, DRAWS - first) for first in range(0, DRAWS, DRAWS_AT_A_TIME)]
    samples = (generator.integers(len(steps), size=(n, len(steps)), dtype=np.int32) for n in sizes)
    medians: Seconds = np.concatenate([np.median(steps[sample], axis=1) for sample in samples])
    return np.log(medians)
