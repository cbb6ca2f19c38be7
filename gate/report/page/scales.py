"""A range of numbers laid onto a range of a picture, and long series made short for drawing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gate.report.sparkline import position

BUCKETS = 240
Pair = tuple[int, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """A label of an axis, at its place in the picture's units."""

    position: float
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """Maps `low` to `start` and `high` to `end`, in the picture's units.

    A logarithmic scale wants `low` above zero and puts what is below it at `start`.
    """

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """The place of a finite number, in tenths of a unit."""
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
        # halved first: the sum of two large floats would be infinite
        return self.low / 2 + self.high / 2


def ticks(scale: Scale, label: Callable[[float], str]) -> tuple[Tick, ...]:
    """The ends and the middle of an axis, or the one value that there is."""
    values = (scale.middle,) if scale.high == scale.low else (scale.low, scale.middle, scale.high)
    return tuple(Tick(position=scale.at(value), label=label(value)) for value in values)


def step_ticks(scale: Scale) -> tuple[Tick, ...]:
    """The first, a middle and the last step of an axis; two of them may be one."""
    steps = sorted({scale.low, float(round(scale.middle)), scale.high})
    return tuple(Tick(position=scale.at(step), label=f"{step:,.0f}") for step in steps)


def number(value: float) -> str:
    """A number as an axis shows it, four digits at most."""
    return f"{value:.4g}"


def is_thinned(steps: Sequence[int]) -> bool:
    """Whether a series has more points than a picture shows."""
    return len(steps) > 2 * BUCKETS


def envelope(pairs: Iterable[Pair], first: int, last: int) -> list[Pair]:
    """The lowest and the highest value of each of `BUCKETS` stretches of steps, in their order.

    A stretch with a value that is not finite has one such value in the result as well, so that
    none of them vanishes among its neighbours.
    """
    width = (last - first + 1) / BUCKETS
    points: list[Pair] = []
    stretch: list[Pair] = []
    current = 0
    for step, value in pairs:
        bucket = int((step - first) / width)
        if bucket != current:
            points += _extremes(stretch)
            stretch, current = [], bucket
        stretch.append((step, value))
    return points + _extremes(stretch)


def _extremes(stretch: list[Pair]) -> list[Pair]:
    finite = [pair for pair in stretch if math.isfinite(pair[1])]
    # one is enough to draw the gap, and none would hide a NaN behind its neighbours
    kept = [pair for pair in stretch if not math.isfinite(pair[1])][:1]
    if finite:
        kept += {min(finite, key=_value), max(finite, key=_value)}
    return sorted(kept, key=by_step)


def _value(pair: Pair) -> float:
    return pair[1]


def by_step(pair: Pair) -> int:
    """The key that orders points."""
    return pair[0]


def evenly(count: int, wanted: int) -> list[int]:
    """At most `wanted` places among `count`, the first and the last included, evenly spaced."""
    if count <= wanted:
        return list(range(count))
    return [round(place * (count - 1) / (wanted - 1)) for place in range(wanted)]
