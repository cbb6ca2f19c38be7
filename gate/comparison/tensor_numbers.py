"""By how much two blocks of numbers differ: one pass, exact maxima, no array that is not small.

Most types are exact in float32, where a processor does twice as much at once. There a first answer
is rounded, and the few elements that may hold the maximum are then taken again in float64.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gate.comparison.element_types import ElementType, Numbers, Raw

# Parts at once. Fewer would stay nearer to the processor, but then its threads mostly wait for each
# other's interpreter lock: on two cores a quarter as many take half as long again.
BLOCK: Final = 128 * 1024
# A distance is counted in the class of its upper 16 bits as a float32: exactly below 256, within
# one part in 128 above.
# A quantile needs a sorted array or a histogram; the upper 16 bits of a float32 make a histogram
# with classes of equal relative width, at the price of one shift.
CLASS_BITS: Final = 16
# From the class below 1.0, which takes distance 0, up to that of 2**64, the widest of 64 bits.
LOWEST_CLASS: Final = (0x3F800000 >> CLASS_BITS) - 1
CLASSES: Final = (0x5F800000 >> CLASS_BITS) - LOWEST_CLASS + 2
# Rounding moves a quotient of float32 by far less than this part of it.
DOUBT: Final = 1e-6
# A power of two that lifts every number of float64 above the subnormal ones, or keeps it finite.
LIFT: Final = 2.0**600
# The linear algebra library starts threads of its own for longer rows.
ROW: Final = 8192
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(kw_only=True, slots=True)
class BlockSums:
    """What is known of some parts; `first` is the least index that differs.

    `squares` are the sums of squares of left, right and difference.
    """

    differing: int = 0
    first: int | None = None
    squares: tuple[float, float, float] = (0.0, 0.0, 0.0)
    largest: float = 0.0
    largest_relative: float = 0.0
    largest_distance: int = 0
    finite: int = 0
    not_numbers: tuple[int, int] = (0, 0)
    infinities: tuple[int, int] = (0, 0)

    def take(self, other: BlockSums) -> None:
        """Add what was seen elsewhere, but for the squares, which want a sum without rounding."""
        self.differing += other.differing
        if other.first is not None:
            self.first = other.first if self.first is None else min(self.first, other.first)
        self.largest = max(self.largest, other.largest)
        self.largest_relative = max(self.largest_relative, other.largest_relative)
        self.largest_distance = max(self.largest_distance, other.largest_distance)
        self.finite += other.finite
        self.not_numbers = _added(self.not_numbers, other.not_numbers)
        self.infinities = _added(self.infinities, other.infinities)


def _added(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] + other[0], one[1] + other[1]


class _Scratch(threading.local):
    """Two blocks for each thread: memory that is asked for anew costs more than the arithmetic."""

    def __init__(self) -> None:
        self.one = np.empty(BLOCK, dtype=np.float64)
        self.other = np.empty(BLOCK, dtype=np.float64)
        self.classes = np.empty(BLOCK, dtype=np.intp)


_scratch = _Scratch()


def add_block(
    sums: BlockSums, kind: ElementType, raw: tuple[Raw, Raw], first: int, counts: Counts
) -> tuple[float, float, float]:
    """Add one block that begins at part `first`; the sums of squares are handed back.

    `counts` takes the distances of floats, shape (CLASSES,).
    """
    left, right = raw
    # bits and not values: NaN is equal to itself here, and 0.0 is another number than -0.0
    changed = left != right
    differing = _elements(kind, changed)
    sums.differing += differing
    if differing and (sums.first is None or first < sums.first):
        index = first + int(np.argmax(changed))
        sums.first = index if sums.first is None else min(sums.first, index)
    one, other = kind.numbers(left), kind.numbers(right)
    squares = _all_squares(one, other, differ=differing > 0)
    # one look at two sums instead of one at each element: a NaN or infinity makes its sum so too
    if not math.isfinite(squares[0] + squares[1]):
        fit = _note_odd_ones(sums, kind, one, other)
        left, right, one, other = left[fit], right[fit], one[fit], other[fit]
        squares = _all_squares(one, other, differ=differing > 0)
    sums.finite += len(one)
    if not differing or not len(one):
        counts[0] += len(one)
        return squares
    _add_distances(sums, kind, (left, right), counts)
    add_gaps = _add_narrow_gaps if kind.narrow else _add_wide_gaps
    add_gaps(sums, one, other)
    return squares


def _elements(kind: ElementType, marked: Mask) -> int:
    """How many elements have a marked part."""
    either = marked if kind.parts == 1 else marked[0::2] | marked[1::2]
    return int(np.count_nonzero(either))


def _all_squares(left: Numbers, right: Numbers, *, differ: bool) -> tuple[float, float, float]:
    """The sums of squares of left, right and difference, in float64."""
    # in float64: squares of float32 overflow from 2**64 on
    one = _scratch.one[: len(left)]
    np.copyto(one, left)
    first = _squares(one)
    if not differ:
        return first, first, 0.0
    other = _scratch.other[: len(right)]
    np.copyto(other, right)
    second = _squares(other)
    return first, second, _squares(np.subtract(one, other, out=one))


def _squares(values: NDArray[np.float64]) -> float:
    whole = len(values) - len(values) % ROW
    rows = values[:whole].reshape(-1, ROW)
    rest = values[whole:]
    return float(np.vecdot(rows, rows).sum() + np.vecdot(rest, rest))


def _note_odd_ones(sums: BlockSums, kind: ElementType, left: Numbers, right: Numbers) -> Mask:
    """Count elements that are no finite numbers; true where both sides are finite."""
    counted = _elements(kind, np.isnan(left)), _elements(kind, np.isnan(right))
    sums.not_numbers = _added(sums.not_numbers, counted)
    counted = _elements(kind, np.isinf(left)), _elements(kind, np.isinf(right))
    sums.infinities = _added(sums.infinities, counted)
    fit: Mask = np.isfinite(left) & np.isfinite(right)
    return fit


def _add_distances(
    sums: BlockSums, kind: ElementType, raw: tuple[Raw, Raw], counts: Counts
) -> None:
    if kind.is_float and kind.signed:
        distances = _float_distances(kind, *raw)
    else:
        distances = kind.distances(*raw)
    sums.largest_distance = max(sums.largest_distance, int(distances.max()))
    if not kind.is_float:
        return
    # float32 rounds monotonically, so a distance never falls into a class below its own
    rounded = _scratch.other.view(np.float32)[: len(distances)]
    np.copyto(rounded, distances, casting="unsafe")
    classes = np.right_shift(
        rounded.view(np.int32), CLASS_BITS, out=_scratch.classes[: len(distances)]
    )
    np.maximum(classes, LOWEST_CLASS, out=classes)
    classes -= LOWEST_CLASS
    found = np.bincount(classes)
    counts[: len(found)] += found


def _float_distances(kind: ElementType, left: Raw, right: Raw) -> Raw:
    """Where signs agree, which is nearly everywhere, patterns are as far apart as numbers are."""
    # the sign bit of the exclusive or is set where the two signs differ
    crossed = np.bitwise_xor(left, right, out=_scratch.other.view(left.dtype)[: len(left)])
    crossed_anywhere = crossed.min() < 0
    gaps = np.subtract(left, right, out=_scratch.one.view(left.dtype)[: len(left)])
    np.abs(gaps, out=gaps)
    distances = gaps.view(np.dtype(f"<u{gaps.dtype.itemsize}"))
    if crossed_anywhere:
        apart = crossed < 0
        distances[apart] = kind.distances(left[apart], right[apart])
    return distances


def _add_narrow_gaps(sums: BlockSums, left: Numbers, right: Numbers) -> None:
    """Differences of float32."""
    gaps = np.subtract(left, right, out=_scratch.one.view(np.float32)[: len(left)])
    np.abs(gaps, out=gaps)
    largest = float(gaps.max())
    # a difference of two finite numbers may leave float32, but not float64
    if not math.isfinite(largest):
        _add_wide_gaps(sums, left, right)
        return
    if largest and largest * (1 + DOUBT) >= sums.largest:
        # rounding keeps order, so the largest one is among those that look largest
        _take_exact(sums, left, right, gaps == np.float32(largest))
    # the magnitudes stand in the two halves of the other block
    scale, magnitude = np.split(_scratch.other.view(np.float32), 2)
    scale = np.abs(left, out=scale[: len(left)])
    np.maximum(scale, np.abs(right, out=magnitude[: len(left)]), out=scale)
    smallest = np.finfo(np.float32).smallest_normal
    if scale.min() < smallest:
        # a processor divides by subnormal numbers slowly, and NumPy by zero with a warning
        _take_exact(sums, left, right, (scale < smallest) & (gaps > 0))
        np.maximum(scale, smallest, out=scale)
    np.divide(gaps, scale, out=gaps)
    ratio = float(gaps.max())
    if ratio * (1 + DOUBT) >= sums.largest_relative:
        _take_exact(sums, left, right, gaps >= np.float32(ratio * (1 - DOUBT)))


def _take_exact(sums: BlockSums, left: Numbers, right: Numbers, which: Mask) -> None:
    """Take the maxima of some elements in float64."""
    if which.any():
        _add_wide_gaps(sums, left[which], right[which])


def _add_wide_gaps(sums: BlockSums, left: Numbers, right: Numbers) -> None:
    """Differences in float64."""
    one, other = left.astype(np.float64), right.astype(np.float64)
    gaps = one - other
    np.abs(gaps, out=gaps)
    sums.largest = max(sums.largest, float(gaps.max()))
    scale = np.maximum(np.abs(one), np.abs(other))
    usual = (scale >= 1 / LIFT) & (scale <= LIFT)
    if not usual.all():
        # a ratio stays when both numbers are brought nearer to one
        nearer = np.where(scale < 1, LIFT, 1 / LIFT)
        gaps = np.where(usual, gaps, np.abs(one * nearer - other * nearer))
        scale = np.where(usual, scale, np.maximum(scale * nearer, 1 / LIFT))
    sums.largest_relative = max(sums.largest_relative, float((gaps / scale).max()))


def class_end(number: int) -> int:
    """The largest distance of a class."""
    if number == 0:
        return 0
    following = np.array([(number + 1 + LOWEST_CLASS) << CLASS_BITS], dtype=np.int32)
    return math.ceil(float(following.view(np.float32)[0])) - 1
