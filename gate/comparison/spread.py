"""Whether one more value lies where a few values of the same metric let it be expected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Final

from gate.comparison.spread_record import MetricSpread, SpreadPlace
from gate.comparison.student import quantile
from gate.evidence.run_evidence import RunEvidence
from gate.evidence.seeds import SeedResult

SHARE: Final = 0.95
# of two values the interval is so wide that almost anything lies inside
LEAST_VALUES: Final = 3


def spread_of(
    metric: str, values: Sequence[float], value: float, place: SpreadPlace
) -> MetricSpread | None:
    """The prediction interval of `values` for one more observation, and whether `value` is inside.

    mean ± t(0.975, n - 1) · s · √(1 + 1/n): G. J. Hahn and W. Q. Meeker, Statistical Intervals
    (1991), 4.7. None for fewer than three values, or where one is not finite.
    """
    count = len(values)
    if count < LEAST_VALUES or not all(map(math.isfinite, (*values, value))):
        return None
    mean, deviation = fmean(values), stdev(values)
    half = quantile((1 + SHARE) / 2, count - 1) * deviation * math.sqrt(1 + 1 / count)
    # of values whose squares overflow there is no interval
    if not math.isfinite(half):
        return None
    return MetricSpread(
        metric=metric,
        place=place,
        value=value,
        values=count,
        mean=mean,
        deviation=deviation,
        low=mean - half,
        high=mean + half,
        inside=mean - half <= value <= mean + half,
    )


def last_values(run: RunEvidence) -> dict[str, float]:
    """The last value of each metric of a run."""
    return {series.name: series.points[-1].value for series in run.metrics if series.points}


def values_of_seeds(results: Sequence[SeedResult], metric: str) -> tuple[float, ...]:
    """The last values of a metric over the seeds of the training itself, no variant's."""
    found = (one.value(metric) for one in results if not one.variant)
    return tuple(point.value for point in found if point is not None)


def spreads(
    judged: dict[str, float], values: dict[str, tuple[float, ...]], place: SpreadPlace
) -> tuple[MetricSpread, ...]:
    """One for each metric that is judged and has enough values, in the order of their names."""
    found = (
        spread_of(metric, values.get(metric, ()), value, place)
        for metric, value in sorted(judged.items())
    )
    return tuple(one for one in found if one is not None)
