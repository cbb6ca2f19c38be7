"""The final weights of reruns against each other, in one pass and with constant memory.

The largest distance in units in the last place misleads, since near zero any difference is huge
there; so the quantiles are given, and the relative L2 norm of the difference beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gate.comparison.floats import numbers, ulp_distances
from gate.records.measurement import UlpQuantile, WeightNoise
from gate.records.values import FloatPair

SHARES = (0.5, 0.9, 0.99, 1.0)
# Distances below are counted one by one, those above in classes that double.
EXACT = 4096
CLASSES = EXACT + 64
# Beyond, a square leaves float64.
LARGEST = 1e150


@dataclass(frozen=True, kw_only=True, slots=True)
class PairSums:
    """One rerun against the first run: sums over all elements that are finite in both.

    `distances` counts units in the last place, shape (CLASSES,).
    """

    difference_squares: float
    squares: float
    elements: int
    differing: int
    not_finite: int
    distances: NDArray[np.int64]

    @property
    def relative_l2(self) -> float:
        """Norm of the difference over the larger of the two norms; 0 for equal weights."""
        if self.difference_squares == 0:
            return 0.0
        return math.sqrt(self.difference_squares / self.squares)


def pair_sums(pairs: Iterable[FloatPair]) -> PairSums:
    """Sum up all stretches of two states."""
    difference, left_squares, right_squares = 0.0, 0.0, 0.0
    elements, differing, not_finite = 0, 0, 0
    distances = np.zeros(CLASSES, dtype=np.int64)
    for pair in pairs:
        left, right = numbers(pair.dtype, pair.left), numbers(pair.dtype, pair.right)
        fit = (np.abs(left) <= LARGEST) & (np.abs(right) <= LARGEST)
        apart = ulp_distances(pair.dtype, pair.left, pair.right)[fit]
        left, right = left[fit], right[fit]
        difference += float(np.sum((left - right) ** 2))
        left_squares += float(np.sum(left**2))
        right_squares += float(np.sum(right**2))
        elements += len(left)
        not_finite += len(fit) - len(left)
        differing += int(np.count_nonzero(apart))
        distances += np.bincount(_classes(apart), minlength=CLASSES)
    return PairSums(
        difference_squares=difference,
        squares=max(left_squares, right_squares),
        elements=elements,
        differing=differing,
        not_finite=not_finite,
        distances=distances,
    )


def _classes(apart: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The distance itself while small, else a class for each power of two that it stays below."""
    # the exponent is the number of bits: the class of a power of two without a logarithm
    _, exponents = np.frexp(apart.astype(np.float64))
    bits = exponents.astype(np.int64)
    first = EXACT.bit_length()
    small = np.minimum(apart, EXACT).astype(np.int64)
    return np.where(apart < EXACT, small, EXACT + np.clip(bits - first, 0, CLASSES - EXACT - 1))


def weight_noise(pairs: tuple[PairSums, ...], not_compared: tuple[str, ...]) -> WeightNoise:
    """All reruns together; quantiles above 4095 are rounded up to a power of two."""
    counts = np.sum([pair.distances for pair in pairs], axis=0)
    norms = tuple(pair.relative_l2 for pair in pairs)
    return WeightNoise(
        elements=max(pair.elements for pair in pairs),
        elements_that_differ=max(pair.differing for pair in pairs),
        not_finite=max(pair.not_finite for pair in pairs),
        not_compared=not_compared,
        relative_l2=norms,
        largest_relative_l2=max(norms),
        ulp=tuple(UlpQuantile(share=share, distance=_quantile(counts, share)) for share in SHARES),
    )


def _quantile(counts: NDArray[np.int64], share: float) -> int:
    """The distance that this share of the elements does not exceed."""
    total = int(counts.sum())
    if total == 0:
        return 0
    reached = int(np.searchsorted(np.cumsum(counts), math.ceil(share * total)))
    if reached < EXACT:
        return reached
    return EXACT << (reached - EXACT + 1)
