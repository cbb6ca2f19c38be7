"""Mean, deviation and counts of a column, gathered block by block."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from gate.data.data_sets import MAX_CLASSES
from gate.text.file_names import shown_name

Floats = npt.NDArray[np.float64]
MAX_SHOWN_NAME: Final = 200
# a value stands for a class where it comes twice on average
ROWS_A_CLASS: Final = 2


class Moments:
    """Count, mean and squared deviation of the finite numbers; NaN are counted.

    Blocks are joined by the pairwise formula 2.1 of Chan, Golub and LeVeque, "Algorithms for
    computing the sample variance" (The American Statistician 37, 1983), in float64: it loses no
    digits where the mean is large beside the deviation.
    """

    def __init__(self) -> None:
        self.numbers = 0
        self.nans = 0
        self._finite = 0
        self._mean = 0.0
        self._squares = 0.0

    def add(self, values: npt.NDArray[np.generic]) -> None:
        """A block of numbers of any real type."""
        floats: Floats = values.astype(np.float64, copy=False)
        # values near the end of the range overflow: what is then unknown is told as None
        with np.errstate(all="ignore"):
            finite = floats[np.isfinite(floats)]
            block = Moments()
            block.numbers = int(floats.size)
            block.nans = int(np.isnan(floats).sum())
            block._finite = int(finite.size)
            if finite.size:
                block._mean = float(finite.mean())
                block._squares = float(np.square(finite - block._mean).sum())
        self.join(block)

    def join(self, other: Moments) -> None:
        """Numbers that were gathered elsewhere come behind these."""
        self.numbers += other.numbers
        self.nans += other.nans
        together = self._finite + other._finite
        if not other._finite:
            return
        between = other._mean - self._mean
        share = other._finite / together
        self._mean += between * share
        # not `between**2`, which raises where it overflows
        self._squares += other._squares + between * between * self._finite * share
        self._finite = together

    @property
    def mean(self) -> float | None:
        """Of the finite numbers; None where there are none."""
        return _finite(self._mean) if self._finite else None

    @property
    def deviation(self) -> float | None:
        """Of the population; None where there is no finite number."""
        return _finite(math.sqrt(self._squares / self._finite)) if self._finite else None

    @property
    def nan_share(self) -> float | None:
        """From 0 to 1; None where there is no number."""
        return self.nans / self.numbers if self.numbers else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


class Column:
    """The numbers of an array or column, and how often each value comes where there are few."""

    def __init__(self, *, numeric: bool = True, classes: bool = True) -> None:
        self.moments: Moments | None = Moments() if numeric else None
        self.values: Counter[str] | None = Counter() if classes else None
        self.rows = 0
        self.rows_read = 0

    def count(self, values: Iterable[str] | Mapping[str, int]) -> None:
        """Count values, until there are more than can be classes."""
        if self.values is None:
            return
        self.values.update(values)
        if len(self.values) > MAX_CLASSES:
            self.values = None

    def join(self, other: Column) -> None:
        """The same column of the next file."""
        self.rows += other.rows
        self.rows_read += other.rows_read
        if self.moments is None or other.moments is None:
            self.moments = None
        else:
            self.moments.join(other.moments)
        if other.values is None:
            self.values = None
        else:
            self.count(other.values)

    @property
    def classes(self) -> dict[str, int]:
        """How often each value comes; empty where there are too many to be classes."""
        counts: Mapping[str, int] = self.values or {}
        if len(counts) * ROWS_A_CLASS > sum(counts.values()):
            return {}
        return named_counts(counts)


def named_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts by names that can be shown; empty where there are more than a record holds."""
    if len(counts) > MAX_CLASSES:
        return {}
    found: Counter[str] = Counter()
    for name in sorted(counts):
        found[shown_name(name, limit=MAX_SHOWN_NAME)] += counts[name]
    return dict(found)
