"""Classify how a difference grows over the steps, and find the lines that read a varied source.

Each shape is a straight line in one plot of the difference d: constant in log(d), proportional in
log(d / |value|), steady in log(d) over log(steps since it began), exponential in log(d) over the
steps. The lines are fitted by least squares. A shape is named only where its line fits and no other
line fits about as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import linear_regression, mean, median, pstdev
from typing import Final

from gate.comparison.differences import Comparison, Event, MetricDelta
from gate.comparison.measurements import MAX_READINGS, ReadingLine
from gate.diagnosis.diagnosis import MAX_POINTS, Growth, GrowthPoint, GrowthShape
from gate.evidence.observations import SourceKind
from gate.evidence.run_evidence import RunEvidence
from gate.settings.variations import Variation

LOSS: Final = "loss"
# With fewer points, every curve looks like a line.
MIN_POINTS: Final = 6
# In decades (log10): the points scatter by about an eighth around the line.
STILL: Final = 0.05
FITS: Final = 0.15
# In decades. Below this much growth, a slow sum looks exponential too.
MIN_DECADES: Final = 1.5
# The largest float is a little above 10**308.
MAX_DECADES: Final = 300.0
# One line is clearly better than another if its residual is smaller by this factor.
CLEARLY: Final = 0.7
# A share of the largest difference: above it, the curve levels off.
NEAR_THE_TOP: Final = 0.1
# float32 has a relative precision of 1.2e-7. A difference that starts this small is rounding.
ROUNDING: Final = 1e-5
SAME_SIGN: Final = 0.9


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fit:
    """A fitted line: `left` is the standard deviation of its residuals in decades."""

    left: float
    slope: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Named:
    """A shape with its words and numbers; the fields are those of `Growth`."""

    shape: GrowthShape
    words: str
    factor: float | None = None
    power: float | None = None
    until: int | None = None


def growth_of(comparison: Comparison) -> Growth | None:
    """Classify the growth of the loss's difference, else of the metric that differs most often.

    None where it differs at fewer than `MIN_POINTS` steps.
    """
    deltas = _of_one_metric(comparison.metrics)
    if len(deltas) < MIN_POINTS:
        return None
    points = tuple(map(_point, deltas))
    named = _named(deltas, points)
    return Growth(
        metric=deltas[0].metric,
        shape=named.shape,
        sentence=named.words,
        points_used=len(points),
        first=points[0],
        last=points[-1],
        factor=named.factor,
        power=named.power,
        until=named.until,
        points=tuple(points[place] for place in _evenly(len(points))),
    )


def _of_one_metric(deltas: Sequence[MetricDelta]) -> tuple[MetricDelta, ...]:
    # Keyed by step: imported evidence may contain a step twice, and a line needs two distinct
    # steps.
    series: dict[str, dict[int, MetricDelta]] = {}
    for delta in deltas:
        if delta.absolute:
            series.setdefault(delta.metric, {})[delta.step] = delta
    if not series:
        return ()
    most = max(series, key=lambda name: (name == LOSS, len(series[name])))
    return tuple(series[most][step] for step in sorted(series[most]))


def _point(delta: MetricDelta) -> GrowthPoint:
    return GrowthPoint(step=delta.step, absolute=delta.absolute or 0.0, relative=delta.relative)


def _evenly(count: int) -> tuple[int, ...]:
    if count <= MAX_POINTS:
        return tuple(range(count))
    return tuple(round(place * (count - 1) / (MAX_POINTS - 1)) for place in range(MAX_POINTS))


def _named(deltas: tuple[MetricDelta, ...], points: tuple[GrowthPoint, ...]) -> _Named:
    logs = [math.log10(point.absolute) for point in points]
    shares = [math.log10(point.relative) for point in points if point.relative]
    still = _spread(logs) <= STILL
    proportional = len(shares) == len(points) and _spread(shares) <= STILL
    if still and _one_sided(deltas):
        return _constant(mean(logs), also_proportional=proportional)
    if proportional and _spread(shares) < CLEARLY * _spread(logs):
        return _proportional(mean(shares))
    return _growing(points)


def _constant(log_amount: float, *, also_proportional: bool) -> _Named:
    words = f"a constant offset of about {10**log_amount:.3g} at every step"
    if also_proportional:
        # The value is almost constant too, so both shapes fit.
        words += ", which here is a constant part of the value too"
    return _Named(
        shape=GrowthShape.CONSTANT,
        words=f"{words}: systematic, and not amplified by the training",
    )


def _proportional(log_share: float) -> _Named:
    return _Named(
        shape=GrowthShape.PROPORTIONAL,
        words=f"proportional to the value, about {10**log_share:.3g} of it at every step: "
        "systematic, as by a factor",
    )


def _growing(points: tuple[GrowthPoint, ...]) -> _Named:
    """Return exponential or steady growth, up to where it levels off; else unclear."""
    rise = _before_the_top(points)
    logs = [math.log10(point.absolute) for point in rise]
    steps = [point.step for point in rise]
    since = [math.log10(step - steps[0] + 1) for step in steps]
    by_step, by_power = _line(steps, logs), _line(since, logs)
    until = rise[-1].step if len(rise) < len(points) else None
    decades = by_step.slope * (steps[-1] - steps[0])
    if (
        decades >= MIN_DECADES
        and by_step.left <= FITS * decades
        and by_step.left < CLEARLY * by_power.left
    ):
        return _exponential(rise[0], by_step, until)
    other = min(by_step.left, _spread(logs))
    if by_power.slope > STILL and by_power.left <= min(FITS, CLEARLY * other):
        return _steady(by_power, until)
    least, most = (f"{size(point.absolute for point in points):.2g}" for size in (min, max))
    # A value of zero has no relative difference, so such a metric is not known to be rounding only.
    rounding = all(point.relative is not None and point.relative <= ROUNDING for point in points)
    why = (
        "it stays of the size of rounding, and does not grow"
        if rounding
        else "neither an offset, nor a factor, nor a steady or exponential growth fits"
    )
    return _Named(
        shape=GrowthShape.UNCLEAR, words=f"no clear shape between {least} and {most}: {why}"
    )


def _levels_off(until: int | None) -> str:
    return "" if until is None else f" up to step {until}, then levels off"


def _steady(fit: _Fit, until: int | None) -> _Named:
    return _Named(
        shape=GrowthShape.STEADY,
        words=f"grows steadily, about as the number of steps to the power {fit.slope:.1f}"
        f"{_levels_off(until)}: it adds up, systematic rather than amplified",
        power=fit.slope,
        until=until,
    )


def _exponential(first: GrowthPoint, fit: _Fit, until: int | None) -> _Named:
    factor = 10 ** min(fit.slope, MAX_DECADES)
    words = (
        f"grows exponentially, by a factor of {factor:.3g} a step (doubles every "
        f"{math.log10(2) / fit.slope:.2g} steps){_levels_off(until)}"
    )
    if first.relative is not None and first.relative <= ROUNDING:
        words += (
            f", from {first.relative:.1g} of the value: chaos, the training amplifies a difference "
            "of the size of rounding, and the size at the end says nothing about the cause"
        )
    else:
        words += ": the training amplifies it"
    return _Named(shape=GrowthShape.EXPONENTIAL, words=words, factor=factor, until=until)


def _before_the_top(points: tuple[GrowthPoint, ...]) -> tuple[GrowthPoint, ...]:
    """Return the points up to the first one near the maximum, if later ones rise no further.

    All points are returned where growth does not end, or too few would be left to fit a line.
    """
    top = max(point.absolute for point in points)
    place = next(at for at, point in enumerate(points) if point.absolute >= NEAR_THE_TOP * top)
    rest = [math.log10(point.absolute) for point in points[place:]]
    early, late = rest[: len(rest) // 2], rest[len(rest) // 2 :]
    flat = len(rest) >= MIN_POINTS and median(late) - median(early) < FITS
    return points[: place + 1] if flat and place + 1 >= MIN_POINTS else points


def _one_sided(deltas: tuple[MetricDelta, ...]) -> bool:
    above = sum(float(delta.observed) > float(delta.expected) for delta in deltas) / len(deltas)
    return max(above, 1 - above) >= SAME_SIGN


def _spread(values: list[float]) -> float:
    return pstdev(values) if values else math.inf


def _line(x: Sequence[float], y: Sequence[float]) -> _Fit:
    """Fit a line by least squares; x must not be constant, which distinct steps ensure."""
    slope, start = linear_regression(x, y)
    left = pstdev([value - start - slope * at for at, value in zip(x, y, strict=True)])
    return _Fit(left=left, slope=slope)


# The harness writes this word for a line that it found by scanning the code after the run.
IN_CODE: Final = "code"


def varied_words(variation: Variation, run: RunEvidence) -> tuple[str, str]:
    """Return what the harness says was varied, and why nothing was; one of the two is "".

    One process with a varied source is enough.
    """
    words = [
        source
        for source in run.sources
        if source.kind is SourceKind.VARIED and source.call == variation.name
    ]
    varied = next((source.after for source in words if source.after), "")
    if varied:
        return varied, ""
    return "", next((source.before for source in words if source.before), variation.unused)


def reading_lines(
    variation: Variation, run: RunEvidence, first: Event | None
) -> tuple[ReadingLine, ...]:
    """Return the lines that may have read the varied source before the first divergence.

    Lines that certainly ran come before those that were only found in the code.
    """
    last = None if first is None else first.step
    lines = {
        ReadingLine(
            place=source.place,
            call=source.call,
            step=source.step,
            in_code=source.before == IN_CODE,
        ): None
        for source in run.sources
        if source.kind.value in variation.kinds
        and source.file
        and source.call not in variation.passed_over
        and (last is None or source.step <= last)
    }
    # The latest read before the difference is the nearest to it.
    ranked = sorted(lines, key=lambda line: (line.in_code, -line.step))
    return tuple(ranked[:MAX_READINGS])
