"""What each tolerance of the settings decides, and the smallest change that it would catch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from gate.comparison.metrics import tolerance_for
from gate.comparison.ulp import FRACTION_BITS
from gate.records.comparison import ToleranceUse
from gate.records.observed.evidence import MetricSeries, RunEvidence
from gate.records.settings import Tolerance


def tolerance_uses(run: RunEvidence, tolerances: tuple[Tolerance, ...]) -> tuple[ToleranceUse, ...]:
    """One row for each tolerance, in the order of the settings."""
    return tuple(_use(run, rule, tolerances) for rule in tolerances)


def _use(run: RunEvidence, rule: Tolerance, tolerances: tuple[Tolerance, ...]) -> ToleranceUse:
    decided = [series for series in run.metrics if tolerance_for(series.name, tolerances) is rule]
    matched = any(tolerance_for(series.name, (rule,)) for series in run.metrics)
    shares = chain.from_iterable(_shares(series, rule) for series in decided)
    return ToleranceUse(
        pattern=rule.metric,
        metrics=tuple(series.name for series in decided),
        shadowed=matched and not decided,
        least_share=min(shares, default=None),
    )


def _shares(series: MetricSeries, rule: Tolerance) -> Iterator[float]:
    """How far each judged point may move, as a part of its value."""
    fraction_bits, _ = FRACTION_BITS[series.dtype]
    points = series.points if rule.steps == "every" else series.points[-1:]
    for point in points:
        size = abs(point.value)
        if size:
            # a tolerance holds where any one limit does, so the widest of them is what
            # it lets through; a unit in the last place is at most this part of a value
            yield max(rule.absolute / size, rule.relative, rule.ulp * 2.0**-fraction_bits)
