"""How a difference goes on, and which lines read what a run varied.

Each shape is a straight line in one picture of the numbers: constant in log(d), proportional in
log(d / |value|), steady in log(d) over log(steps since it began), exponential in log(d) over the
steps. A shape is named where its line fits and no other does about as well; the lines are least
squares.
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
# of fewer points every curve is a line
MIN_POINTS: Final = 6
# of log10: about an eighth up or down around the line
STILL: Final = 0.05
FITS: Final = 0.15
# what is called exponential has to grow by this much, or a slow sum looks the same
MIN_DECADES: Final = 1.5
# the largest float is a little above this power of ten
MAX_DECADES: Final = 300.0
# one line is better than another where what it leaves is smaller by this factor
CLEARLY: Final = 0.7
# a part of the largest difference: above it the curve levels off
NEAR_THE_TOP: Final = 0.1
# float32 keeps a part of 1.2e-7: what begins this small began as rounding
ROUNDING: Final = 1e-5
SAME_SIGN: Final = 0.9


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fit:
    """A line: what it leaves (standard deviation in decades), and how steep it is."""

    left: float
    slope: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Named:
    """A shape with its words and numbers, as `Growth` has them."""

    shape: GrowthShape
    words: str
    factor: float | None = None
    power: float | None = None
    until: int | None = None


def growth_of(comparison: Comparison) -> Growth | None:
    """How the loss's difference, else that of the metric with most of them, goes on.

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
    # by step: evidence of another job may hold a step twice, and a line needs two of them
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
        # the value itself hardly moves
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
    """Exponential or steady, up to where it levels off; else unclear."""
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
    # a value near zero has no share of its own: the metric is not known to be rounded only
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
    """The points up to the first near the largest, where those behind it rise no further.

    All of them where too few are left, and in growth without end.
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
    """The line of least squares; steps are distinct, so there is one."""
    slope, start = linear_regression(x, y)
    left = pstdev([value - start - slope * at for at, value in zip(x, y, strict=True)])
    return _Fit(left=left, slope=slope)


# the harness's word for a line that it found by looking through the code, at the end
IN_CODE: Final = "code"


def varied_words(variation: Variation, run: RunEvidence) -> tuple[str, str]:
    """What the harness says that the training found, and why it found nothing else; one is empty.

    One process in which it was varied is enough.
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
    """The lines that may have read it before the first divergence, those that surely ran first."""
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
    # what was read last before the difference is nearest to it
    ranked = sorted(lines, key=lambda line: (line.in_code, -line.step))
    return tuple(ranked[:MAX_READINGS])
