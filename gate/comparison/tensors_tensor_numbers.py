"""By how much the numbers of two tensors differ, from stretches of their bytes, in any order.

Only sums, counts and maxima are kept, so memory does not grow with a tensor. The sums of stretches
are added up without rounding, so the order in which threads deliver them changes no bit.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gate.comparison.element_types import ELEMENT_TYPES
from gate.comparison.state_difference import NumberDifference, UlpShare
from gate.comparison.tensor_numbers import BLOCK, CLASSES, BlockSums, Counts, add_block, class_end

SHARES: Final = (0.5, 0.9, 0.99, 1.0)
# Below, squares of float64 have lost digits.
SMALLEST_SQUARES: Final = 1e-290


Squares = tuple[float, float, float]


def has_numbers(dtype: str) -> bool:
    """Whether elements of this type can be subtracted."""
    return dtype in ELEMENT_TYPES


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberTotals:
    """What a norm and quantiles are made of; those of several types of tensors add up.

    `squares` are rows of sums of squares of left, right and difference, `largest` is the largest
    difference, `counts` the distances in units in the last place, shape (CLASSES,).
    """

    differing: int
    finite: int
    squares: tuple[Squares, ...]
    largest: float
    largest_distance: int
    counts: Counts

    @property
    def relative_l2(self) -> float | None:
        """Norm of the difference over the larger norm; None where float64 cannot hold a square."""
        left, right, difference = _exact_sums(self.squares)
        larger = max(left, right)
        underflown = larger < SMALLEST_SQUARES and self.largest > 0
        if underflown or not math.isfinite(larger + difference):
            return None
        return math.sqrt(difference / larger) if larger else 0.0


def quantiles(counts: Counts, largest_distance: int) -> tuple[UlpShare, ...]:
    """The distances that the shares of `SHARES` do not exceed; 0 where nothing was counted."""
    below = np.cumsum(counts)
    shares = []
    for share in SHARES:
        place = int(np.searchsorted(below, math.ceil(share * int(below[-1]))))
        shares.append(UlpShare(share=share, distance=min(class_end(place), largest_distance)))
    return tuple(shares)


class TensorNumbers:
    """Two tensors of one type and shape while they are being compared; any thread may add."""

    def __init__(self, dtype: str, shape: tuple[int, ...]) -> None:
        self._type = ELEMENT_TYPES[dtype]
        self._shape = shape
        self._lock = threading.Lock()
        self._sums = BlockSums()
        self._squares: list[Squares] = []
        self._counts = np.zeros(CLASSES, dtype=np.int64)

    def add(self, start: int, left: memoryview, right: memoryview) -> None:
        """Take a stretch that begins at byte `start`; it holds whole elements."""
        bits = np.dtype(self._type.bits)
        first = start // bits.itemsize
        one, other = np.frombuffer(left, bits), np.frombuffer(right, bits)
        total = BlockSums()
        counts = np.zeros(CLASSES, dtype=np.int64)
        with np.errstate(all="ignore"):
            squares = [
                add_block(
                    total,
                    self._type,
                    (one[at : at + BLOCK], other[at : at + BLOCK]),
                    first + at,
                    counts,
                )
                for at in range(0, len(one), BLOCK)
            ]
        # only the small totals are added under the lock; the arithmetic ran without it
        with self._lock:
            self._sums.take(total)
            self._counts += counts
            self._squares.append(_exact_sums(squares))

    def totals(self) -> NumberTotals:
        """What was added up, for a figure over several tensors."""
        return NumberTotals(
            differing=self._sums.differing,
            finite=self._sums.finite,
            squares=tuple(self._squares),
            largest=self._sums.largest,
            largest_distance=self._sums.largest_distance,
            counts=self._counts,
        )

    def result(self) -> NumberDifference:
        """The figures over everything that was added."""
        sums = self._sums
        known = sums.finite > 0
        largest: float = sums.largest if self._type.is_float else sums.largest_distance
        ulp = quantiles(self._counts, sums.largest_distance) if self._type.is_float else ()
        return NumberDifference(
            elements=math.prod(self._shape),
            differing=sums.differing,
            first_index=_index((sums.first or 0) // self._type.parts, self._shape),
            max_absolute=largest if known and math.isfinite(largest) else None,
            max_relative=sums.largest_relative if known else None,
            relative_l2=self.totals().relative_l2 if known else None,
            ulp=ulp if known else (),
            not_numbers=sums.not_numbers,
            infinities=sums.infinities,
        )


def _exact_sums(rows: Sequence[Squares]) -> Squares:
    left, right, difference = zip(*rows, strict=True) if rows else ((), (), ())
    return _exact_sum(left), _exact_sum(right), _exact_sum(difference)


def _exact_sum(values: tuple[float, ...]) -> float:
    try:
        # exactly rounded, so the order in which threads deliver stretches changes no bit
        return math.fsum(values)
    except OverflowError:
        return math.inf


def _index(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The row-major position of an element as one index for each dimension."""
    indices = []
    for size in reversed(shape):
        flat, index = divmod(flat, size)
        indices.append(index)
    return tuple(reversed(indices))
