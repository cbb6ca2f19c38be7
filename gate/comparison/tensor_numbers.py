"""Measure how much the numbers of two tensors differ, exactly and in one pass.

NumPy has neither bfloat16 (the upper half of a float32) nor the one-byte floats, whose 256 values
are in tables here. Sources: P. Micikevicius and others, FP8 Formats for Deep Learning, 2022; the
FNUZ types (no infinity, no minus zero) as StableHLO specifies them; E8M0, a power of two without
sign, in OCP Microscaling Formats 1.0.

Most types are exact in float32, where a processor does twice as much at once. There a first result
is rounded. The few elements that may be the maximum are then computed again in float64.

Only sums, counts and maxima are kept, so memory does not grow with the tensor. The sums of
stretches are added without rounding, so the order in which threads deliver them changes no bit.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gate.comparison.state_difference import NumberDifference, UlpShare

Raw = NDArray[Any]
Numbers = NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ElementType:
    """How elements are stored; `bits` is NumPy's integer type of one part of an element.

    `numbers` converts an array of `bits` to floats: float32 where that represents the type exactly,
    else float64, which rounds only integers beyond 2**53. `signed`: floats have a sign bit.
    `narrow`: the numbers are float32. `parts` is 2 for complex numbers.
    """

    bits: str
    numbers: Callable[[Raw], Numbers]
    is_float: bool = True
    signed: bool = True
    narrow: bool = True
    parts: int = 1

    def distances(self, left: Raw, right: Raw) -> Raw:
        """Return the exact distance of each pair of parts, unsigned, in steps of the type.

        For floats a step is a unit in the last place; the two zeros are one number.
        """
        first, second = self._ordered(left), self._ordered(right)
        # Sort each pair first: an unsigned difference would wrap the wrong way round.
        larger, smaller = np.maximum(first, second), np.minimum(first, second)
        # Unsigned arithmetic is modulo the width, so even the widest distance fits.
        unsigned = np.dtype(f"<u{first.dtype.itemsize}")
        gaps: Raw = larger.view(unsigned) - smaller.view(unsigned)
        return gaps

    def _ordered(self, raw: Raw) -> Raw:
        if not (self.is_float and self.signed):
            return raw
        # Convert sign and magnitude to two's complement: then patterns sort like their numbers.
        magnitude = raw & np.iinfo(raw.dtype).max
        return np.where(raw < 0, -magnitude, magnitude)


def _viewed(stored: str) -> Callable[[Raw], Numbers]:
    return lambda raw: raw.view(stored)


def _widened(stored: str, wide: str) -> Callable[[Raw], Numbers]:
    return lambda raw: raw.view(stored).astype(wide)


def _brain(raw: Raw) -> Numbers:
    # The lower half of a float32 is fraction that bfloat16 does not have, so it is zero.
    return (raw.astype("<u4") << 16).view("<f4")


def _tabled(values: list[float]) -> Callable[[Raw], Numbers]:
    table = np.array(values, dtype=np.float32)
    return lambda raw: table[raw.view(np.uint8)]


def _byte_float(exponent_bits: int, bias: int, *, minus_zero: bool) -> list[float]:
    """Return all 256 values of a one-byte float without infinities.

    Without a minus zero, the code of minus zero is the only NaN. With one, the two codes whose
    other bits are all one are NaN.
    """
    fraction_bits = 7 - exponent_bits
    values = []
    for code in range(256):
        exponent = (code & 0x7F) >> fraction_bits
        fraction = (code & ((1 << fraction_bits) - 1)) / (1 << fraction_bits)
        size = (
            math.ldexp(1 + fraction, exponent - bias)
            if exponent
            else math.ldexp(fraction, 1 - bias)
        )
        values.append(-size if code >> 7 else size)
    # E4M3 has one NaN for each sign. The FNUZ types use the code that minus zero would have.
    for code in (0x7F, 0xFF) if minus_zero else (0x80,):
        values[code] = math.nan
    return values


def _half_byte(raw: Raw) -> Numbers:
    """Convert E5M2, which is the upper byte of a float16."""
    # E5M2 is float16 cut off after its second fraction bit, so appending zeros gives the same
    # number.
    return (raw.view(np.uint8).astype("<u2") << 8).view("<f2").astype("<f4")


def _scales() -> list[float]:
    return [*(math.ldexp(1.0, code - 127) for code in range(255)), math.nan]


def _integer(bits: str) -> ElementType:
    return ElementType(bits=bits, numbers=_widened(bits, "<f8"), is_float=False, narrow=False)


_FLOAT32 = ElementType(bits="<i4", numbers=_viewed("<f4"))
ELEMENT_TYPES: Final[dict[str, ElementType]] = {
    "BOOL": _integer("u1"),
    "U8": _integer("u1"),
    # Two four-bit numbers in a byte, and files of unknown format, are compared byte by byte.
    "F4_X2": _integer("u1"),
    "RAW": _integer("u1"),
    "I8": _integer("i1"),
    "U16": _integer("<u2"),
    "I16": _integer("<i2"),
    "U32": _integer("<u4"),
    "I32": _integer("<i4"),
    "U64": _integer("<u8"),
    "I64": _integer("<i8"),
    "F16": ElementType(bits="<i2", numbers=_widened("<f2", "<f4")),
    "BF16": ElementType(bits="<i2", numbers=_brain),
    "F32": _FLOAT32,
    "F64": ElementType(bits="<i8", numbers=_viewed("<f8"), narrow=False),
    "C32": ElementType(bits="<i2", numbers=_widened("<f2", "<f4"), parts=2),
    "C64": ElementType(bits="<i4", numbers=_viewed("<f4"), parts=2),
    "C128": ElementType(bits="<i8", numbers=_viewed("<f8"), narrow=False, parts=2),
    "F8_E5M2": ElementType(bits="i1", numbers=_half_byte),
    "F8_E4M3": ElementType(bits="i1", numbers=_tabled(_byte_float(4, 7, minus_zero=True))),
    "F8_E4M3FNUZ": ElementType(bits="i1", numbers=_tabled(_byte_float(4, 8, minus_zero=False))),
    "F8_E5M2FNUZ": ElementType(bits="i1", numbers=_tabled(_byte_float(5, 16, minus_zero=False))),
    "F8_E8M0": ElementType(bits="u1", numbers=_tabled(_scales()), signed=False),
}


# Parts per block. Smaller blocks would fit the processor's caches better, but its threads would
# then mostly wait for the interpreter lock: on two cores, a quarter of this size takes 1.5 times as
# long.
BLOCK: Final = 128 * 1024
# Quantiles need a sorted array or a histogram. A distance is counted in the class of the upper 16
# bits of its float32. These classes have equal relative width and cost one shift. They are exact
# below 256 and within one part in 128 above.
CLASS_BITS: Final = 16
# The classes go from the one below 1.0, for distance 0, to that of 2**64, the widest of 64 bits.
LOWEST_CLASS: Final = (0x3F800000 >> CLASS_BITS) - 1
CLASSES: Final = (0x5F800000 >> CLASS_BITS) - LOWEST_CLASS + 2
# Rounding changes a float32 quotient by far less than this share.
DOUBT: Final = 1e-6
# A power of two that lifts every float64 above the subnormal range, or keeps it finite. Scaling by
# it is exact.
LIFT: Final = 2.0**600
# For longer rows the linear algebra library would start threads of its own.
ROW: Final = 8192
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(kw_only=True, slots=True)
class BlockSums:
    """The sums, counts and maxima of some parts; `first` is the lowest index that differs.

    `squares` are the sums of squares of left, right and their difference.
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
        """Add the totals of a different block, except the squares.

        The squares need a sum without rounding.
        """
        self.differing += other.differing
        if other.first is not None:
            self.first = other.first if self.first is None else min(self.first, other.first)
        self.largest = max(self.largest, other.largest)
        self.largest_relative = max(self.largest_relative, other.largest_relative)
        self.largest_distance = max(self.largest_distance, other.largest_distance)
        self.finite += other.finite
        self.not_numbers = _added(self.not_numbers, other.not_numbers)
        self.infinities = _added(self.infinities, other.infinities)


def _added(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    return left[0] + right[0], left[1] + right[1]


class _Scratch(threading.local):
    """Reusable buffers for each thread: allocating them costs more than the arithmetic."""

    def __init__(self) -> None:
        self.left = np.empty(BLOCK, dtype=np.float64)
        self.right = np.empty(BLOCK, dtype=np.float64)
        self.classes = np.empty(BLOCK, dtype=np.intp)


_scratch = _Scratch()


def add_block(
    sums: BlockSums, kind: ElementType, raw: tuple[Raw, Raw], first: int, counts: Counts
) -> tuple[float, float, float]:
    """Add one block that starts at part `first`; return its sums of squares.

    `counts` collects the distances of floats, shape (CLASSES,).
    """
    left, right = raw
    # Compare bits instead of values: NaN equals itself here, and 0.0 differs from -0.0.
    changed = left != right
    differing = _elements(kind, changed)
    sums.differing += differing
    if differing and (sums.first is None or first < sums.first):
        index = first + int(np.argmax(changed))
        sums.first = index if sums.first is None else min(sums.first, index)
    one_side, other_side = kind.numbers(left), kind.numbers(right)
    squares = _all_squares(one_side, other_side, differ=differing > 0)
    # Check two sums instead of each element: a NaN or infinity makes its sum not finite.
    if not math.isfinite(squares[0] + squares[1]):
        fit = _note_odd_ones(sums, kind, one_side, other_side)
        left, right, one_side, other_side = left[fit], right[fit], one_side[fit], other_side[fit]
        squares = _all_squares(one_side, other_side, differ=differing > 0)
    sums.finite += len(one_side)
    if not differing or not len(one_side):
        counts[0] += len(one_side)
        return squares
    _add_distances(sums, kind, (left, right), counts)
    add_gaps = _add_narrow_gaps if kind.narrow else _add_wide_gaps
    add_gaps(sums, one_side, other_side)
    return squares


def _elements(kind: ElementType, marked: Mask) -> int:
    """Return how many elements have a marked part."""
    either = marked if kind.parts == 1 else marked[0::2] | marked[1::2]
    return int(np.count_nonzero(either))


def _all_squares(left: Numbers, right: Numbers, *, differ: bool) -> tuple[float, float, float]:
    """Return the sums of squares of left, right and their difference, in float64."""
    # Use float64: squares of float32 overflow from 2**64 on.
    numbers = _scratch.left[: len(left)]
    np.copyto(numbers, left)
    first = _squares(numbers)
    if not differ:
        return first, first, 0.0
    other = _scratch.right[: len(right)]
    np.copyto(other, right)
    second = _squares(other)
    return first, second, _squares(np.subtract(numbers, other, out=numbers))


def _squares(values: NDArray[np.float64]) -> float:
    whole = len(values) - len(values) % ROW
    rows = values[:whole].reshape(-1, ROW)
    rest = values[whole:]
    return float(np.vecdot(rows, rows).sum() + np.vecdot(rest, rest))


def _note_odd_ones(sums: BlockSums, kind: ElementType, left: Numbers, right: Numbers) -> Mask:
    """Count elements that are not finite; return a mask that is true where both are finite."""
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
    # float32 rounds monotonically, so a distance never gets into a class below its own.
    rounded = _scratch.right.view(np.float32)[: len(distances)]
    np.copyto(rounded, distances, casting="unsafe")
    classes = np.right_shift(
        rounded.view(np.int32), CLASS_BITS, out=_scratch.classes[: len(distances)]
    )
    np.maximum(classes, LOWEST_CLASS, out=classes)
    classes -= LOWEST_CLASS
    in_class = np.bincount(classes)
    counts[: len(in_class)] += in_class


def _float_distances(kind: ElementType, left: Raw, right: Raw) -> Raw:
    """Return the distances of floats: where signs agree, patterns are as far apart as numbers.

    Signs agree nearly everywhere, so only the exceptions take the slower way.
    """
    # The sign bit of the exclusive or is set where the two signs differ.
    crossed = np.bitwise_xor(left, right, out=_scratch.right.view(left.dtype)[: len(left)])
    crossed_anywhere = crossed.min() < 0
    gaps = np.subtract(left, right, out=_scratch.left.view(left.dtype)[: len(left)])
    np.abs(gaps, out=gaps)
    distances = gaps.view(np.dtype(f"<u{gaps.dtype.itemsize}"))
    if crossed_anywhere:
        apart = crossed < 0
        distances[apart] = kind.distances(left[apart], right[apart])
    return distances


def _add_narrow_gaps(sums: BlockSums, left: Numbers, right: Numbers) -> None:
    """Take the maxima of the differences of float32 numbers."""
    gaps = np.subtract(left, right, out=_scratch.left.view(np.float32)[: len(left)])
    np.abs(gaps, out=gaps)
    largest = float(gaps.max())
    # The difference of two finite numbers may overflow float32, but not float64.
    if not math.isfinite(largest):
        _add_wide_gaps(sums, left, right)
        return
    if largest and largest * (1 + DOUBT) >= sums.largest:
        # Rounding is monotone, so the largest difference is among those that look largest.
        _take_exact(sums, left, right, gaps == np.float32(largest))
    # The two halves of the other scratch block hold the magnitudes.
    scale, magnitude = np.split(_scratch.right.view(np.float32), 2)
    scale = np.abs(left, out=scale[: len(left)])
    np.maximum(scale, np.abs(right, out=magnitude[: len(left)]), out=scale)
    smallest = np.finfo(np.float32).smallest_normal
    if scale.min() < smallest:
        # Processors divide by subnormal numbers slowly, and NumPy warns about a division by zero.
        _take_exact(sums, left, right, (scale < smallest) & (gaps > 0))
        np.maximum(scale, smallest, out=scale)
    np.divide(gaps, scale, out=gaps)
    ratio = float(gaps.max())
    if ratio * (1 + DOUBT) >= sums.largest_relative:
        _take_exact(sums, left, right, gaps >= np.float32(ratio * (1 - DOUBT)))


def _take_exact(sums: BlockSums, left: Numbers, right: Numbers, which: Mask) -> None:
    """Take the maxima of the elements marked in `which`, in float64."""
    if which.any():
        _add_wide_gaps(sums, left[which], right[which])


def _add_wide_gaps(sums: BlockSums, left: Numbers, right: Numbers) -> None:
    """Take the maxima of the differences in float64."""
    first, second = left.astype(np.float64), right.astype(np.float64)
    gaps = first - second
    np.abs(gaps, out=gaps)
    sums.largest = max(sums.largest, float(gaps.max()))
    scale = np.maximum(np.abs(first), np.abs(second))
    usual = (scale >= 1 / LIFT) & (scale <= LIFT)
    if not usual.all():
        # A ratio stays the same if both numbers are scaled closer to one.
        nearer = np.where(scale < 1, LIFT, 1 / LIFT)
        gaps = np.where(usual, gaps, np.abs(first * nearer - second * nearer))
        scale = np.where(usual, scale, np.maximum(scale * nearer, 1 / LIFT))
    sums.largest_relative = max(sums.largest_relative, float((gaps / scale).max()))


def class_end(number: int) -> int:
    """Return the largest distance that a class contains."""
    if number == 0:
        return 0
    following = np.array([(number + 1 + LOWEST_CLASS) << CLASS_BITS], dtype=np.int32)
    return math.ceil(float(following.view(np.float32)[0])) - 1


SHARES: Final = (0.5, 0.9, 0.99, 1.0)
# Below this, squares in float64 have lost digits.
SMALLEST_SQUARES: Final = 1e-290


Squares = tuple[float, float, float]


def has_numbers(dtype: str) -> bool:
    """Return whether elements of this type can be subtracted."""
    return dtype in ELEMENT_TYPES


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberTotals:
    """The totals from which a norm and quantiles are computed; totals of several types add up.

    `squares` are rows of sums of squares of left, right and difference. `largest` is the largest
    difference. `counts` are the distances in units in the last place, shape (CLASSES,).
    """

    differing: int
    finite: int
    squares: tuple[Squares, ...]
    largest: float
    largest_distance: int
    counts: Counts

    @property
    def relative_l2(self) -> float | None:
        """The norm of the difference over the larger norm; None where float64 cannot hold it."""
        left, right, difference = _exact_sums(self.squares)
        larger = max(left, right)
        underflown = larger < SMALLEST_SQUARES and self.largest > 0
        if underflown or not math.isfinite(larger + difference):
            return None
        return math.sqrt(difference / larger) if larger else 0.0


def quantiles(counts: Counts, largest_distance: int) -> tuple[UlpShare, ...]:
    """Return the distance that each share of `SHARES` does not exceed; 0 if nothing was counted."""
    below = np.cumsum(counts)
    shares = []
    for share in SHARES:
        place = int(np.searchsorted(below, math.ceil(share * int(below[-1]))))
        shares.append(UlpShare(share=share, distance=min(class_end(place), largest_distance)))
    return tuple(shares)


class TensorNumbers:
    """A comparison in progress of two tensors of one type and shape; any thread may add."""

    def __init__(self, dtype: str, shape: tuple[int, ...]) -> None:
        self._type = ELEMENT_TYPES[dtype]
        self._shape = shape
        self._lock = threading.Lock()
        self._sums = BlockSums()
        self._squares: list[Squares] = []
        self._counts = np.zeros(CLASSES, dtype=np.int64)

    def add(self, start: int, left: memoryview, right: memoryview) -> None:
        """Add the stretch that starts at byte `start`; it must contain whole elements."""
        bits = np.dtype(self._type.bits)
        first = start // bits.itemsize
        one_side, other_side = np.frombuffer(left, bits), np.frombuffer(right, bits)
        total = BlockSums()
        counts = np.zeros(CLASSES, dtype=np.int64)
        with np.errstate(all="ignore"):
            squares = [
                add_block(
                    total,
                    self._type,
                    (one_side[at : at + BLOCK], other_side[at : at + BLOCK]),
                    first + at,
                    counts,
                )
                for at in range(0, len(one_side), BLOCK)
            ]
        # Only the small totals need the lock; the arithmetic runs without it.
        with self._lock:
            self._sums.take(total)
            self._counts += counts
            self._squares.append(_exact_sums(squares))

    def totals(self) -> NumberTotals:
        """Return the totals, for a figure over several tensors."""
        return NumberTotals(
            differing=self._sums.differing,
            finite=self._sums.finite,
            squares=tuple(self._squares),
            largest=self._sums.largest,
            largest_distance=self._sums.largest_distance,
            counts=self._counts,
        )

    def result(self) -> NumberDifference:
        """Return the figures over everything that was added."""
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
        # fsum rounds only once, so the order in which threads deliver stretches changes no bit.
        return math.fsum(values)
    except OverflowError:
        return math.inf


def _index(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the row-major position of an element as one index per dimension."""
    indices = []
    for size in reversed(shape):
        flat, index = divmod(flat, size)
        indices.append(index)
    return tuple(reversed(indices))
