"""How far float32 sums of the workload's own gradients move with the order of summation.

A sum of floats depends on its order; threads, atomics and another GPU change that order. The range
of many orders over the sum of magnitudes is what any such change may do to one reduction (N. J.
Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 2002, section 4.2: errors of a sum
are bounded in terms of the sum of magnitudes, whatever the order).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gate.checkpoint.dtypes import ELEMENT_BYTES
from gate.checkpoint.leaves import StateContent, TensorLeaf
from gate.comparison.element_types import ELEMENT_TYPES
from gate.comparison.measurements import ReductionSpread

FLOATS = frozenset(("F64", "F32", "F16", "BF16"))
MAX_TENSOR_ELEMENTS = 1024 * 1024
MAX_ELEMENTS = 4 * 1024 * 1024
PERMUTATIONS = 8
PARTS = (2, 3, 4, 8, 16, 64, 256)
# forwards, backwards, by pairs, in parts, and shuffled
ORDERS = 3 + len(PARTS) + PERMUTATIONS
Values = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatTensor:
    """The first elements of a tensor in row-major order, shape (elements,)."""

    name: str
    values: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpread:
    """The sums of one tensor: their range over the magnitudes and over the sum itself."""

    name: str
    elements: int
    of_magnitude: float
    of_sum: float | None
    distinct: int


def gradient_tensors(
    content: StateContent,
    *,
    max_tensor_elements: int = MAX_TENSOR_ELEMENTS,
    max_elements: int = MAX_ELEMENTS,
) -> Iterator[FloatTensor]:
    """The gradients that the harness saved: the first elements of each, so many in all."""
    left = max_elements
    for leaf in content.leaves:
        if not isinstance(leaf, TensorLeaf) or leaf.dtype not in FLOATS:
            continue
        width, kind = ELEMENT_BYTES[leaf.dtype], ELEMENT_TYPES[leaf.dtype]
        count = min(leaf.source.size_bytes // width, max_tensor_elements, left)
        if count:
            left -= count
            data = next(leaf.source.pieces(count * width))
            # a signaling NaN is a bit pattern like any other; the processor reports its widening
            with np.errstate(invalid="ignore"):
                values = kind.numbers(np.frombuffer(data, kind.bits)).astype(np.float64)
            yield FloatTensor(name=leaf.path.removeprefix("/"), values=values)


def sums_in_many_orders(values: Values, seed: int = 0) -> Values:
    """Sums in float32, shape (ORDERS,); the same values give the same sums."""
    return np.array(list(_sums(values, np.random.default_rng(seed))), dtype=np.float32)


def _sums(values: Values, generator: np.random.Generator) -> Iterator[np.float32]:
    yield _one_by_one(values)
    yield _one_by_one(values[::-1])
    yield np.add.reduce(values)
    for count in PARTS:
        parts = np.array_split(values, count)
        yield _one_by_one(np.array([_one_by_one(part) for part in parts], dtype=np.float32))
    for _ in range(PERMUTATIONS):
        yield _one_by_one(generator.permutation(values))


def _one_by_one(values: Values) -> np.float32:
    """From the first to the last, as one thread would; `np.sum` goes by pairs."""
    # a running sum cannot be reordered, unlike `sum`, which NumPy adds by pairs and in blocks
    return np.float32(np.cumsum(values, dtype=np.float32)[-1]) if len(values) else np.float32(0)


def tensor_spread(tensor: FloatTensor) -> TensorSpread | None:
    """The spread of one tensor; None when nothing finite can be summed."""
    with np.errstate(over="ignore"):
        values = tensor.values[np.isfinite(tensor.values)].astype(np.float32)
        magnitude = float(np.sum(np.abs(values), dtype=np.float64))
        sums = sums_in_many_orders(values).astype(np.float64)
    if magnitude == 0 or not (np.isfinite(magnitude) and np.isfinite(sums).all()):
        return None
    spread = float(sums.max() - sums.min())
    total = abs(float(np.sum(values, dtype=np.float64)))
    return TensorSpread(
        name=tensor.name,
        elements=len(values),
        of_magnitude=spread / magnitude,
        of_sum=spread / total if total > 0 else None,
        distinct=len(np.unique(sums)),
    )


def reduction_spread(tensors: Iterable[FloatTensor]) -> ReductionSpread | None:
    """All gradients together; None when there is none to sum."""
    spreads = [spread for spread in map(tensor_spread, tensors) if spread is not None]
    if not spreads:
        return None
    worst = max(spreads, key=lambda spread: spread.of_magnitude)
    return ReductionSpread(
        tensors=len(spreads),
        elements=sum(spread.elements for spread in spreads),
        orders=ORDERS,
        worst_tensor=worst.name,
        worst=worst.of_magnitude,
        median=float(np.median([spread.of_magnitude for spread in spreads])),
        worst_of_sum=worst.of_sum,
        most_distinct_sums=max(spread.distinct for spread in spreads),
    )
