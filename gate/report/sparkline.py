"""A curve in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
GAP = "✕"
WIDTH = 40


def sparkline(values: Sequence[float | None], width: int = WIDTH) -> str:
    """One block character a value, or a mean of neighbours when there are more than `width`.

    A value that is missing or not finite shows as a cross.
    """
    shown = _buckets([_finite(value) for value in values], width)
    numbers = [value for value in shown if value is not None]
    if not numbers:
        return GAP * len(shown)
    low, high = min(numbers), max(numbers)
    return "".join(GAP if value is None else _block(value, low, high) for value in shown)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _buckets(values: Sequence[float | None], width: int) -> list[float | None]:
    if len(values) <= width:
        return list(values)
    edges = [index * len(values) // width for index in range(width + 1)]
    return [_mean(values[edges[i] : edges[i + 1]]) for i in range(width)]


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean, or None when any value is missing: a NaN must not vanish among its neighbours."""
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values):
        return None
    # divided first: a sum of large numbers would overflow
    return math.fsum(number / len(numbers) for number in numbers)


def _block(value: float, low: float, high: float) -> str:
    return BLOCKS[min(int(position(value, low, high) * len(BLOCKS)), len(BLOCKS) - 1)]


def position(value: float, low: float, high: float) -> float:
    """Where a value lies between two finite ones, from 0 to 1; in the middle of an empty range."""
    span = high - low
    if math.isinf(span):
        return position(value / 2, low / 2, high / 2)
    # not halved without need: the smallest numbers have no half
    return (value - low) / span if span else 0.5
