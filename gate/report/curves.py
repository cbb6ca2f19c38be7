"""The geometry of a drawn curve; the page's template turns it into SVG."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from gate.records.verdict import SeriesSummary
from gate.report.sparkline import position

WIDTH, HEIGHT = 640, 200
LEFT, RIGHT, TOP, BOTTOM = 76, 12, 12, 28
MARKED_POINTS = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """A label of an axis, at its place in the picture's units."""

    position: float
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """A series as line pieces (`x,y x,y ...`) and single points, with its axes' labels.

    A value that is missing or not finite leaves a gap; `gaps` counts them.
    """

    name: str
    source: str
    last: str
    pieces: tuple[str, ...]
    points: tuple[tuple[float, float], ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    gaps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scale:
    """Maps a range of numbers to a range of the picture."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = position(value, self.low, self.high)
        return round(self.start + share * (self.end - self.start), 1)


def curve(series: SeriesSummary) -> Curve:
    """Lay a series out in a picture of WIDTH by HEIGHT units."""
    pairs = list(zip(series.steps, series.values, strict=True))
    finite = [value for _, value in pairs if value is not None and math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    x = _Scale(
        low=min(series.steps, default=0),
        high=max(series.steps, default=0),
        start=LEFT,
        end=WIDTH - RIGHT,
    )
    y = _Scale(low=low, high=high, start=HEIGHT - BOTTOM, end=TOP)
    pieces = _pieces(pairs, x, y)
    points = [point for piece in pieces for point in piece]
    return Curve(
        name=series.name,
        source=series.source,
        last=series.last_decimal,
        pieces=tuple(" ".join(f"{px},{py}" for px, py in piece) for piece in pieces),
        points=tuple(points) if len(points) <= MARKED_POINTS else (),
        x_ticks=_ticks(x, lambda value: f"{value:.0f}"),
        y_ticks=_ticks(y, lambda value: f"{value:.4g}") if finite else (),
        gaps=len(pairs) - len(finite),
    )


def _pieces(
    pairs: list[tuple[int, float | None]], x: _Scale, y: _Scale
) -> list[list[tuple[float, float]]]:
    """Runs of neighbouring finite values."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for step, value in pairs:
        if value is not None and math.isfinite(value):
            pieces[-1].append((x.at(step), y.at(value)))
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _ticks(scale: _Scale, label: Callable[[float], str]) -> tuple[Tick, ...]:
    """The ends and the middle of an axis, or the one value that there is."""
    middle = scale.low / 2 + scale.high / 2
    values = (middle,) if scale.high == scale.low else (scale.low, middle, scale.high)
    return tuple(Tick(position=scale.at(value), label=label(value)) for value in values)
