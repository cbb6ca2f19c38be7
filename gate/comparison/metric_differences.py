"""Compare metrics point by point: equal bits first, tolerance second.

For ULP distances, every finite float of a type maps to an integer so that neighbours differ by one
(IEEE 754: the bit pattern of a non-negative float is monotone in its value). The distance is the
difference of these integers. Minus zero and zero map to the same integer.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

import numpy as np

from gate.comparison.differences import (
    MetricDelta,
    SeriesFault,
    SeriesFaultKind,
    metric_of_rank,
)
from gate.evidence.columns import Point
from gate.evidence.run_evidence import FloatType, MetricSeries, RankRecord
from gate.settings.levels import Improvement, Tolerance

# Bits of the fraction, and the exponent of the smallest normal number (IEEE 754; bfloat16 has the
# exponents of float32).
FRACTION_BITS: Final[dict[FloatType, tuple[int, int]]] = {
    "float64": (52, -1022),
    "float32": (23, -126),
    "float16": (10, -14),
    "bfloat16": (7, -126),
}

# bfloat16 is the upper half of a float32, hence the shift by 16 bits.
_FORMATS: dict[FloatType, tuple[str, str, int]] = {
    "float64": ("<d", "<q", 0),
    "float32": ("<f", "<i", 0),
    "float16": ("<e", "<h", 0),
    "bfloat16": ("<f", "<i", 16),
}


def ulp_distance(a: float, b: float, dtype: FloatType) -> int | None:
    """Return the distance of a and b in units in the last place of `dtype`; None if not finite.

    A value that does not fit the type (a float64 metric judged as float32) counts as not finite.
    """
    if not (math.isfinite(a) and math.isfinite(b)):
        return None
    try:
        return abs(_ordered(a, dtype) - _ordered(b, dtype))
    except OverflowError:
        return None


def _ordered(value: float, dtype: FloatType) -> int:
    float_format, int_format, shift = _FORMATS[dtype]
    # Packing raises OverflowError for a value that the type cannot hold.
    (pattern,) = struct.unpack(int_format, struct.pack(float_format, value))
    bits: int = pattern >> shift
    lowest = int.from_bytes(b"\x80", "big") << (struct.calcsize(int_format) * 8 - 8 - shift)
    # Negative floats sort the other way: convert sign and magnitude to an ordinary integer.
    return bits if bits >= 0 else -(bits + lowest)


def ulp_size(value: float, dtype: FloatType) -> float:
    """Return the distance from a finite number to its next neighbour in the type."""
    fraction, smallest = FRACTION_BITS[dtype]
    exponent = max(int(np.frexp(value)[1]) - 1, smallest)
    return float(np.ldexp(1.0, exponent - fraction))


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricDifferences:
    """The differences between two sets of series, and the number of points compared."""

    deltas: tuple[MetricDelta, ...]
    faults: tuple[SeriesFault, ...]
    compared: int


def compare_metrics(
    expected: tuple[MetricSeries, ...],
    observed: tuple[MetricSeries, ...],
    tolerances: tuple[Tolerance, ...],
) -> MetricDifferences:
    """Compare series by name; a series without a partner, or with different steps, is a fault."""
    left = {series.name: series for series in expected}
    right = {series.name: series for series in observed}
    deltas: list[MetricDelta] = []
    faults: list[SeriesFault] = []
    compared = 0
    for name in sorted(left.keys() | right.keys()):
        expected_series, observed_series = left.get(name), right.get(name)
        fault = _fault(name, expected_series, observed_series)
        if fault is not None:
            faults.append(fault)
        # Series with different steps are still compared at their common steps. Their first
        # difference may come well before the step that one of them lacks.
        if (
            expected_series is None
            or observed_series is None
            or expected_series.dtype != observed_series.dtype
        ):
            continue
        series_deltas, common = _series_deltas(
            expected_series, observed_series, tolerances_for(name, tolerances)
        )
        deltas += series_deltas
        compared += common
    return MetricDifferences(deltas=tuple(deltas), faults=tuple(faults), compared=compared)


def with_rank_metrics(
    known: MetricDifferences,
    pairs: Sequence[tuple[RankRecord, RankRecord]],
    rules: tuple[Tolerance, ...],
) -> MetricDifferences:
    """Add the differences in the metrics of ranks other than 0.

    Ranks are compared one by one, so a name that a script chooses can never stand for a metric of a
    different rank.
    """
    comparisons = [known, *(_of_rank(left, right, rules) for left, right in pairs)]
    return MetricDifferences(
        deltas=tuple(delta for comparison in comparisons for delta in comparison.deltas),
        faults=tuple(fault for comparison in comparisons for fault in comparison.faults),
        compared=sum(comparison.compared for comparison in comparisons),
    )


def _of_rank(
    left: RankRecord, right: RankRecord, rules: tuple[Tolerance, ...]
) -> MetricDifferences:
    comparison = compare_metrics(left.metrics, right.metrics, rules)
    return MetricDifferences(
        deltas=tuple(
            delta.model_copy(update={"metric": metric_of_rank(delta.metric, left.rank)})
            for delta in comparison.deltas
        ),
        faults=tuple(
            fault.model_copy(update={"metric": metric_of_rank(fault.metric, left.rank)})
            for fault in comparison.faults
        ),
        compared=comparison.compared,
    )


def tolerances_for(name: str, tolerances: tuple[Tolerance, ...]) -> tuple[Tolerance, ...]:
    """Return the tolerances whose pattern matches the metric's name, in order."""
    return tuple(rule for rule in tolerances if fnmatchcase(name, rule.metric))


def last_step(series: MetricSeries) -> int:
    """Return the step that a tolerance for the `final` step decides; 0 without points."""
    return series.points[-1].step if series.points else 0


def tolerance_at(step: int, last: int, rules: tuple[Tolerance, ...]) -> Tolerance | None:
    """Return the first of a metric's tolerances that covers a step; None requires equal bits.

    `last` is the metric's last step.
    """
    return next((rule for rule in rules if rule.decides(step, last)), None)


def _fault(
    name: str, expected: MetricSeries | None, observed: MetricSeries | None
) -> SeriesFault | None:
    """Return why two series of one name cannot be compared at every point, or None."""
    if expected is None:
        steps = observed.points.steps if observed is not None else ()
        return _alone(name, SeriesFaultKind.EXTRA, steps, "only in this result")
    if observed is None:
        return _alone(name, SeriesFaultKind.MISSING, expected.points.steps, "missing")
    if expected.dtype != observed.dtype:
        return SeriesFault(
            metric=name,
            kind=SeriesFaultKind.DTYPE,
            first_step=None,
            reason=f"type {expected.dtype} became {observed.dtype}",
        )
    return _other_steps(expected, observed)


def _alone(name: str, kind: SeriesFaultKind, steps: Iterable[int], reason: str) -> SeriesFault:
    return SeriesFault(metric=name, kind=kind, first_step=min(steps, default=None), reason=reason)


def _other_steps(expected: MetricSeries, observed: MetricSeries) -> SeriesFault | None:
    if expected.points.same_steps(observed.points):
        return None
    left, right = expected.points.steps, observed.points.steps
    missing, extra = sorted(set(left) - set(right)), sorted(set(right) - set(left))
    parts = [f"step {missing[0]} is missing"] if missing else []
    parts += [f"step {extra[0]} is not expected"] if extra else []
    parts.append(f"{len(left)} points expected, {len(right)} found")
    return SeriesFault(
        metric=expected.name,
        kind=SeriesFaultKind.STEPS,
        first_step=min((*missing[:1], *extra[:1]), default=None),
        reason=", ".join(parts),
    )


def _series_deltas(
    expected: MetricSeries, observed: MetricSeries, rules: tuple[Tolerance, ...]
) -> tuple[list[MetricDelta], int]:
    """Return the points whose bits differ, and the number of steps that both sides have."""
    # Most series are equal, however long. This check then does all the work.
    if expected.points == observed.points:
        return [], len(expected.points)
    last = last_step(expected)
    right = dict(observed.points.pairs())
    pairs = [(step, value, right[step]) for step, value in expected.points.pairs() if step in right]
    deltas = []
    for step, left_value, right_value in pairs:
        # Hexadecimal is exact: it distinguishes -0.0 from 0.0, and NaN equals itself.
        if left_value.hex() != right_value.hex():
            tolerance = tolerance_at(step, last, rules)
            sides = Point.of(step, left_value), Point.of(step, right_value)
            deltas.append(metric_delta(expected.name, *sides, expected.dtype, tolerance))
    return deltas, len(pairs)


def metric_delta(
    name: str, expected: Point, observed: Point, dtype: FloatType, tolerance: Tolerance | None
) -> MetricDelta:
    """Return the difference of two points whose bits differ."""
    left, right = expected.value, observed.value
    distance = ulp_distance(left, right, dtype)
    absolute = _finite(abs(right - left)) if distance is not None else None
    # A ratio to a number near zero, and a difference of two huge ones, may overflow float64.
    ratio = _finite(absolute / abs(left)) if absolute is not None and left else None
    return MetricDelta(
        metric=name,
        step=expected.step,
        expected=expected.decimal,
        observed=observed.decimal,
        absolute=absolute,
        relative=ratio,
        ulp=distance,
        within=_within((left, right), absolute, distance, tolerance),
        better=tolerance.better(left, right) if tolerance is not None else None,
    )


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _within(
    sides: tuple[float, float],
    absolute: float | None,
    distance: int | None,
    tolerance: Tolerance | None,
) -> bool:
    """Return whether any one limit holds; a number that is not finite is within no tolerance."""
    if tolerance is None or absolute is None or distance is None:
        return False
    if tolerance.improvement is Improvement.PASS and tolerance.better(*sides):
        return True
    return (
        absolute <= tolerance.absolute
        or absolute <= tolerance.relative * abs(sides[0])
        or distance <= tolerance.ulp
    )
