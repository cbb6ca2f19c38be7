"""Compute the geometry of curves over the steps; the page's template turns it into SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gate.report.layout import position
from gate.text.phrases import count

BUCKETS = 240
Pair = tuple[int, float]
Steps = NDArray[np.int64]
Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """A label of an axis, and its position in picture units."""

    position: float
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """Maps `low` to `start` and `high` to `end`, in picture units.

    A logarithmic scale needs `low` above zero, and puts smaller values at `start`.
    """

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """Return the position of a finite number, in tenths of a unit."""
        return round(self.start + self._share(value) * (self.end - self.start), 1)

    def _share(self, value: float) -> float:
        if self.logarithmic and self.low < self.high:
            if value <= self.low:
                return 0.0
            return position(math.log10(value), math.log10(self.low), math.log10(self.high))
        return position(value, self.low, self.high)

    @property
    def middle(self) -> float:
        """The number in the middle of the picture."""
        if self.logarithmic:
            return 10 ** ((math.log10(self.low) + math.log10(self.high)) / 2)
        # Halved before adding, because the sum of two large floats would be infinite.
        return self.low / 2 + self.high / 2


def ticks(scale: Scale, label: Callable[[float], str]) -> tuple[Tick, ...]:
    """Return the ends and the middle of an axis, or its only value."""
    values = (scale.middle,) if scale.high == scale.low else (scale.low, scale.middle, scale.high)
    return tuple(Tick(position=scale.at(value), label=label(value)) for value in values)


def step_ticks(scale: Scale) -> tuple[Tick, ...]:
    """Return an axis's first, middle and last step, without duplicates."""
    steps = sorted({scale.low, float(round(scale.middle)), scale.high})
    return tuple(Tick(position=scale.at(step), label=f"{step:,.0f}") for step in steps)


def axis_number(value: float) -> str:
    """Return a number as an axis shows it, with at most four digits."""
    return f"{value:.4g}"


def is_thinned(steps: Sequence[int]) -> bool:
    """Return whether a series has more points than a picture can show."""
    return len(steps) > 2 * BUCKETS


def envelope(steps: Steps, values: Values, first: int, last: int) -> list[Pair]:
    """Return the lowest and the highest value in each of `BUCKETS` stretches of steps, in order.

    If a stretch has values that are not finite, the first of them is returned too, so that it does
    not disappear.
    """
    width = (last - first + 1) / BUCKETS
    buckets = ((steps - first) / width).astype(np.int64)
    # numpy finds the bounds: there may be a hundred thousand points, but only hundreds of stretches
    bounds = [0, *(np.flatnonzero(np.diff(buckets)) + 1).tolist(), len(steps)]
    kept = [
        begin + place for begin, end in pairwise(bounds) for place in _extremes(values[begin:end])
    ]
    return list(zip(steps[kept].tolist(), values[kept].tolist(), strict=True))


def _extremes(stretch: Values) -> list[int]:
    """Return the indexes of the smallest, the largest, and the first number that is not finite."""
    finite = np.isfinite(stretch)
    # One is enough to draw the gap; without it a NaN would disappear among its neighbours.
    kept = {*np.flatnonzero(~finite)[:1].tolist()}
    places = np.flatnonzero(finite)
    if len(places):
        numbers = stretch[places]
        kept |= {int(places[numbers.argmin()]), int(places[numbers.argmax()])}
    return sorted(kept)


def evenly(count: int, most: int) -> list[int]:
    """Return at most `most` evenly spaced indexes below `count`, with the first and the last."""
    if count <= most:
        return list(range(count))
    return [round(place * (count - 1) / (most - 1)) for place in range(most)]


WIDTH, HEIGHT = 720, 210
# the names of the curves are in the right margin
LEFT, RIGHT, TOP, BOTTOM = 116, 96, 14, 46
MARK_HEIGHT, TITLE_HEIGHT, LABEL_HEIGHT = 20, 20, 18
MAX_TITLE = 48
DECADE = 10.0
EQUAL = "equal"


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A series to draw: name, steps, values (not finite: a gap), and words for its legend.

    `style` is a number from `page_sources.style_of`, so that a run looks the same in every picture.
    """

    name: str
    style: int
    steps: Sequence[int]
    values: Sequence[float]
    words: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A step to point out, with a label."""

    step: int
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnLine:
    """A line as SVG path data; `gaps` has marks above the picture for values that are not finite.

    Its name is at `label_y`, right of the picture. A line without a finite value has None.
    """

    name: str
    words: str
    style: int
    path: str
    gaps: str
    label_y: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnMark:
    """A mark's position; its label is at `y`, on the side that `anchor` names."""

    x: float
    y: float
    anchor: str
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """Lines over the steps in a picture of WIDTH by HEIGHT units, with axes and words.

    The vertical axis's title and the marks' labels are in the `head` units above the picture, where
    they hide no line.
    """

    title: str
    y_title: str
    lines: tuple[DrawnLine, ...]
    marks: tuple[DrawnMark, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    notes: tuple[str, ...]

    @property
    def head(self) -> int:
        """The height above the picture that the axis's title and the marks' labels need."""
        return TITLE_HEIGHT + MARK_HEIGHT * len(self.marks)


def chart(
    title: str,
    lines: tuple[Line, ...],
    marks: tuple[Mark, ...] = (),
    *,
    y_title: str = "",
    distances: bool = False,
) -> Chart:
    """Lay out several lines in one picture; `distances` uses a logarithmic axis above zero.

    The vertical axis is called `y_title`, or `title` if that is empty.
    """
    steps = [edge(line.steps) for line in lines if line.steps for edge in (min, max)]
    x = Scale(low=min(steps, default=0), high=max(steps, default=0), start=LEFT, end=WIDTH - RIGHT)
    curves = [_curve(line) for line in lines]
    values = np.concatenate([np.zeros(0), *(curve[np.isfinite(curve)] for _, curve in curves)])
    y = _distance_scale(values) if distances else _plain_scale(values)
    drawn = [_drawn(line, curve, x, y) for line, curve in zip(lines, curves, strict=True)]
    return Chart(
        title=title,
        y_title=_cut(y_title or title),
        lines=_labelled(curves, drawn, y),
        marks=_drawn_marks(marks, x),
        x_ticks=step_ticks(x),
        y_ticks=_y_ticks(y, values, distances=distances),
        notes=_notes(lines, curves),
    )


Curve = tuple[Steps, Values]


def _curve(line: Line) -> Curve:
    """Return the points sorted by step: evidence of another job only claims to be sorted."""
    steps = np.asarray(line.steps, np.int64)
    order = np.argsort(steps, kind="stable")
    return steps[order], np.asarray(line.values, np.float64)[order]


def _cut(title: str) -> str:
    """Return a title that fits above the picture, where text is neither wrapped nor clipped."""
    return title if len(title) <= MAX_TITLE else f"{title[: MAX_TITLE - 1]}…"


def _labelled(curves: list[Curve], drawn: list[DrawnLine], y: Scale) -> tuple[DrawnLine, ...]:
    """Return each line with its name at its end, and names that would overlap moved apart."""
    ends = {}
    for place, (_, values) in enumerate(curves):
        finite = values[np.isfinite(values)]
        if len(finite):
            ends[place] = y.at(float(finite[-1]))
    order = sorted(ends, key=lambda place: ends[place])
    floor = float(TOP)
    for place in order:
        floor = ends[place] = max(ends[place], floor)
        floor += LABEL_HEIGHT
    # Names that were pushed below the picture push the others up again.
    ceiling = float(HEIGHT - BOTTOM)
    for place in reversed(order):
        ceiling = ends[place] = min(ends[place], ceiling)
        ceiling -= LABEL_HEIGHT
    return tuple(replace(line, label_y=ends.get(place)) for place, line in enumerate(drawn))


def _plain_scale(values: Values) -> Scale:
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
    return Scale(low=low, high=high, start=HEIGHT - BOTTOM, end=TOP)


def _distance_scale(values: Values) -> Scale:
    """Return a scale from a decade below the smallest distance: the bottom is left for `equal`."""
    positive = values[values > 0]
    least, most = (float(positive.min()), float(positive.max())) if len(positive) else (1.0, 1.0)
    # A logarithm needs a number above zero, and a tenth of the smallest positive float is zero.
    low = max(least / DECADE, math.ulp(0.0))
    high = max(most, low * DECADE)
    return Scale(low=low, high=high, start=HEIGHT - BOTTOM, end=TOP, logarithmic=True)


def _y_ticks(y: Scale, values: Values, *, distances: bool) -> tuple[Tick, ...]:
    labels = ticks(y, axis_number) if len(values) else ()
    if not distances or not labels:
        return labels
    return (Tick(position=y.start, label=EQUAL), *labels[1:])


def _notes(lines: tuple[Line, ...], curves: list[Curve]) -> tuple[str, ...]:
    """Return notes on gaps and thinned lines, without which a reader would misread the picture."""
    notes = [
        f"{line.name} has {count(gaps, 'value')} that {'is' if gaps == 1 else 'are'} not finite, "
        "marked above the curve."
        for line, (_, values) in zip(lines, curves, strict=True)
        if (gaps := int((~np.isfinite(values)).sum()))
    ]
    longest = max((len(line.steps) for line in lines if is_thinned(line.steps)), default=0)
    if longest:
        notes.append(
            f"{longest:,} points are too many to draw: each stretch of steps shows its lowest and "
            "highest value."
        )
    return tuple(notes)


def _drawn(line: Line, curve: Curve, x: Scale, y: Scale) -> DrawnLine:
    if is_thinned(line.steps):
        pairs = envelope(*curve, int(x.low), int(x.high))
    else:
        pairs = list(zip(*(column.tolist() for column in curve), strict=True))
    gaps = [x.at(step) for step, value in pairs if not math.isfinite(value)]
    return DrawnLine(
        name=line.name,
        words=line.words,
        style=line.style,
        path=_path(pairs, x, y),
        gaps="".join(f"M{place},{TOP - 10}v8" for place in gaps),
    )


def _path(pairs: list[Pair], x: Scale, y: Scale) -> str:
    """Return path data with a separate piece for each run of consecutive finite values."""
    words: list[str] = []
    opened = False
    for step, value in pairs:
        if not math.isfinite(value):
            opened = False
            continue
        place = f"{x.at(step)},{y.at(value)}"
        # A piece with a single point has no length; `h0` draws it as a dot.
        words.append(place if opened else f"M{place}h0L{place}")
        opened = True
    return " ".join(words)


def _drawn_marks(marks: tuple[Mark, ...], x: Scale) -> tuple[DrawnMark, ...]:
    drawn = []
    for row, mark in enumerate(marks):
        place = x.at(min(max(mark.step, x.low), x.high))
        left_half = place < (LEFT + WIDTH - RIGHT) / 2
        drawn.append(
            DrawnMark(
                x=place,
                y=-MARK_HEIGHT * row,
                anchor="start" if left_half else "end",
                label=mark.label,
            )
        )
    return tuple(drawn)
