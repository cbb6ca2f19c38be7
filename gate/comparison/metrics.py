"""Metric against metric, point by point: exact bits first, tolerance second."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from gate.comparison.ulp import ulp_distance
from gate.records.comparison import MetricDelta, SeriesFault
from gate.records.evidence import FloatType, MetricSeries, Point
from gate.records.settings import Tolerance


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricDifferences:
    """What differs between two sets of series, and how many points were compared."""

    deltas: tuple[MetricDelta, ...]
    faults: tuple[SeriesFault, ...]
    compared: int


def compare_metrics(
    expected: tuple[MetricSeries, ...],
    observed: tuple[MetricSeries, ...],
    tolerances: tuple[Tolerance, ...],
) -> MetricDifferences:
    """Compare series of the same name; one that stands alone, or has other steps, is a fault."""
    left = {series.name: series for series in expected}
    right = {series.name: series for series in observed}
    deltas: list[MetricDelta] = []
    faults: list[SeriesFault] = []
    compared = 0
    for name in sorted(left.keys() | right.keys()):
        if name not in left or name not in right:
            reason = "not in the expected result" if name not in left else "missing"
            faults.append(SeriesFault(metric=name, reason=reason))
            continue
        fault = _unlike(left[name], right[name])
        if fault:
            faults.append(SeriesFault(metric=name, reason=fault))
            continue
        tolerance = tolerance_for(name, tolerances)
        deltas += _series_deltas(left[name], right[name], tolerance)
        compared += len(left[name].points)
    return MetricDifferences(deltas=tuple(deltas), faults=tuple(faults), compared=compared)


def tolerance_for(name: str, tolerances: tuple[Tolerance, ...]) -> Tolerance | None:
    """The first tolerance whose pattern matches, or None: then only equal bits will do."""
    return next((rule for rule in tolerances if fnmatchcase(name, rule.metric)), None)


def _unlike(expected: MetricSeries, observed: MetricSeries) -> str:
    """Why two series of one name cannot be compared point by point, or the empty text."""
    if expected.dtype != observed.dtype:
        return f"type {expected.dtype} became {observed.dtype}"
    left = [point.step for point in expected.points]
    right = [point.step for point in observed.points]
    if left == right:
        return ""
    missing, extra = sorted(set(left) - set(right)), sorted(set(right) - set(left))
    parts = [f"step {missing[0]} is missing" if missing else ""]
    parts += [f"step {extra[0]} is not expected" if extra else ""]
    parts += [f"{len(left)} points expected, {len(right)} found"]
    return ", ".join(part for part in parts if part)


def _series_deltas(
    expected: MetricSeries, observed: MetricSeries, tolerance: Tolerance | None
) -> list[MetricDelta]:
    last = expected.points[-1].step if expected.points else 0
    found = []
    for left, right in zip(expected.points, observed.points, strict=True):
        if left.hex != right.hex:
            judged = tolerance is None or tolerance.steps == "every" or left.step == last
            delta = metric_delta(expected.name, left, right, expected.dtype, tolerance)
            found.append(delta if judged else delta.model_copy(update={"within": True}))
    return found


def metric_delta(
    name: str, expected: Point, observed: Point, dtype: FloatType, tolerance: Tolerance | None
) -> MetricDelta:
    """The difference of two points that are not the same bits."""
    left, right = expected.value, observed.value
    distance = ulp_distance(left, right, dtype)
    finite = distance is not None
    absolute = abs(right - left) if finite else None
    return MetricDelta(
        metric=name,
        step=expected.step,
        expected=expected.decimal,
        observed=observed.decimal,
        absolute=absolute,
        relative=absolute / abs(left) if absolute is not None and left else None,
        ulp=distance,
        within=_within(left, absolute, distance, tolerance),
    )


def _within(
    expected: float, absolute: float | None, distance: int | None, tolerance: Tolerance | None
) -> bool:
    """Whether any one limit holds; what is not finite is inside no tolerance."""
    if tolerance is None or absolute is None or distance is None:
        return False
    return (
        absolute <= tolerance.absolute
        or absolute <= tolerance.relative * abs(expected)
        or distance <= tolerance.ulp
    )
