"""The last values of a run's metrics against the thresholds of the settings."""

from __future__ import annotations

import math
from collections.abc import Mapping

from gate.comparison.check_records import ThresholdResult
from gate.evidence.run_evidence import MetricSeries, RunEvidence
from gate.settings.levels import Threshold


def threshold_results(
    run: RunEvidence, thresholds: Mapping[str, Threshold]
) -> tuple[ThresholdResult, ...]:
    """One row for each threshold, by the metric's name; a metric that is not there meets none."""
    by_name = {series.name: series for series in run.metrics}
    return tuple(_result(name, by_name.get(name), thresholds[name]) for name in sorted(thresholds))


def _result(name: str, series: MetricSeries | None, threshold: Threshold) -> ThresholdResult:
    last = series.points[-1] if series is not None and series.points else None
    # NaN is below and above nothing: without this line it would be inside every bound
    finite = last is not None and math.isfinite(last.value)
    return ThresholdResult(
        metric=name,
        least=threshold.min,
        most=threshold.max,
        step=last.step if last is not None else None,
        value=last.decimal if last is not None else "",
        met=finite and last is not None and _inside(last.value, threshold),
    )


def _inside(value: float, threshold: Threshold) -> bool:
    above = threshold.min is None or value >= threshold.min
    return above and (threshold.max is None or value <= threshold.max)
