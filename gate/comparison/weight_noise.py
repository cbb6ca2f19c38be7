"""Compare final weights of reruns, and measure how far sums move with their order.

A sum of floats depends on its order, and threads, atomics or a different GPU change that order. The
range over many orders, divided by the sum of magnitudes, is what any such change may do to one
reduction (N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 2002, section 4.2:
errors of a sum are bounded in terms of the sum of magnitudes, whatever the order).

The largest distance in units in the last place misleads, because near zero any difference is huge
in these units. So quantiles are reported, beside the relative L2 norm of the difference.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gate.checkpoint.digest import check_leaves
from gate.checkpoint.leaves import ELEMENT_BYTES, StateContent, TensorLeaf
from gate.checkpoint.tensor_hashing import run_all
from gate.comparison.changed_tensors import TensorPair, adding
from gate.comparison.measurements import ReductionSpread, UlpQuantile, WeightDistance, WeightNoise
from gate.comparison.tensor_numbers import (
    CLASSES,
    ELEMENT_TYPES,
    NumberTotals,
    TensorNumbers,
    quantiles,
)

FLOATS = frozenset(("F64", "F32", "F16", "BF16"))
MAX_TENSOR_ELEMENTS = 1024 * 1024
MAX_ELEMENTS = 4 * 1024 * 1024
PERMUTATIONS = 8
PARTS = (2, 3, 4, 8, 16, 64, 256)
# Forwards, backwards, by pairs, then one for each number of parts and each shuffle.
ORDERS = 3 + len(PARTS) + PERMUTATIONS
Values = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatTensor:
    """The first elements of a tensor in row-major order, shape (elements,)."""

    name: str
    values: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpread:
    """The range of one tensor's sums, divided by the sum of magnitudes and by the sum itself."""

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
    """Yield the first elements of each gradient that the harness saved.

    At most `max_tensor_elements` of a tensor, and `max_elements` in all.
    """
    left = max_elements
    for leaf in content.leaves:
        if not isinstance(leaf, TensorLeaf) or leaf.dtype not in FLOATS:
            continue
        width, kind = ELEMENT_BYTES[leaf.dtype], ELEMENT_TYPES[leaf.dtype]
        count = min(leaf.source.size_bytes // width, max_tensor_elements, left)
        if count:
            # The limits bound memory and time, whatever the size of the model.
            left -= count
            data = next(leaf.source.pieces(count * width))
            # A signaling NaN is a valid bit pattern, but the processor flags its conversion.
            with np.errstate(invalid="ignore"):
                values = kind.numbers(np.frombuffer(data, kind.bits)).astype(np.float64)
            yield FloatTensor(name=leaf.path.removeprefix("/"), values=values)


def sums_in_many_orders(values: Values, seed: int = 0) -> Values:
    """Return the float32 sums in all orders, shape (ORDERS,); equal values give equal sums."""
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
    """Sum from the first value to the last, as one thread would; `np.sum` adds by pairs."""
    # A running sum cannot be reordered. NumPy's `sum` adds by pairs and in blocks.
    return np.float32(np.cumsum(values, dtype=np.float32)[-1]) if len(values) else np.float32(0)


def tensor_spread(tensor: FloatTensor) -> TensorSpread | None:
    """Return the spread of one tensor; None when nothing finite can be summed."""
    with np.errstate(over="ignore"):
        # Values that overflow float32 become infinite here; the check below drops such a tensor.
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
    """Return the spread over all gradients; None when there is none to sum."""
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


# These prefixes exclude optimizer state.
WEIGHTS: Final = ("/model/", "/parameter/")
Weights = dict[str, TensorLeaf]


def weight_distance(
    left: StateContent, right: StateContent, *, threads: int, max_bytes: int
) -> WeightDistance:
    """Compare the weights that two captured states share, paired by name, in one pass.

    Only floats have a distance. `max_bytes` bounds each state. Raises `EvidenceError` for a larger
    state, for a name that occurs twice, and for malformed bytes.
    """
    ours, theirs = (_weights(content, max_bytes) for content in (left, right))
    pairs = list(_pairs(ours, theirs))
    compared = {pair.left.path for pair in pairs}
    elements = sum(math.prod(pair.left.shape) for pair in pairs)
    totals = _added_up(pairs, threads)
    counts = totals.counts.tolist()
    return WeightDistance(
        elements=elements,
        differing=totals.differing,
        not_finite=elements - totals.finite,
        not_compared=tuple(sorted(name[1:] for name in (ours.keys() | theirs.keys()) - compared)),
        relative_l2=totals.relative_l2,
        largest_distance=totals.largest_distance,
        distances=tuple(np.trim_zeros(counts, "b")),
    )


def _weights(content: StateContent, max_bytes: int) -> Weights:
    leaves = sorted(content.leaves, key=lambda leaf: leaf.path)
    check_leaves(content.shown, leaves, max_bytes)
    return {
        leaf.path: leaf
        for leaf in leaves
        if isinstance(leaf, TensorLeaf) and leaf.path.startswith(WEIGHTS)
    }


def _pairs(ours: Weights, theirs: Weights) -> Iterator[TensorPair]:
    for path, leaf in ours.items():
        other, kind = theirs.get(path), ELEMENT_TYPES.get(leaf.dtype)
        # Only real floats have a distance in units in the last place.
        if other is None or kind is None or not kind.is_float or kind.parts > 1:
            continue
        if (leaf.dtype, leaf.shape) == (other.dtype, other.shape):
            yield TensorPair(leaf, other)


def _added_up(pairs: Sequence[TensorPair], threads: int) -> NumberTotals:
    """Return the totals of all pairs, with one accumulator per type.

    One per tensor would take 64 KiB each.
    """
    elements = defaultdict[str, int](int)
    for pair in pairs:
        elements[pair.left.dtype] += math.prod(pair.left.shape)
    by_type = {dtype: TensorNumbers(dtype, (size,)) for dtype, size in elements.items()}
    tasks = list[Callable[[], object]]()
    for pair in pairs:
        tasks += adding(pair, by_type[pair.left.dtype])
    run_all(tasks, threads)
    totals = [numbers.totals() for numbers in by_type.values()]
    return NumberTotals(
        differing=sum(total.differing for total in totals),
        finite=sum(total.finite for total in totals),
        squares=tuple(row for total in totals for row in total.squares),
        largest=max((total.largest for total in totals), default=0.0),
        largest_distance=max((total.largest_distance for total in totals), default=0),
        counts=sum((total.counts for total in totals), start=np.zeros(CLASSES, dtype=np.int64)),
    )


def weight_noise(reruns: tuple[WeightDistance, ...]) -> WeightNoise:
    """Return the figures over all reruns; a quantile is the upper end of its class.

    The classes are those of `tensor_numbers.py`.
    """
    counts = np.zeros(CLASSES, dtype=np.int64)
    for rerun in reruns:
        counts[: len(rerun.distances)] += np.array(rerun.distances, dtype=np.int64)
    norms = tuple(rerun.relative_l2 for rerun in reruns)
    known = [norm for norm in norms if norm is not None]
    largest = max(rerun.largest_distance for rerun in reruns)
    return WeightNoise(
        elements=max(rerun.elements for rerun in reruns),
        elements_that_differ=max(rerun.differing for rerun in reruns),
        not_finite=max(rerun.not_finite for rerun in reruns),
        not_compared=tuple(sorted({name for rerun in reruns for name in rerun.not_compared})),
        relative_l2=norms,
        largest_relative_l2=max(known, default=None),
        ulp=tuple(
            UlpQuantile(share=quantile.share, distance=quantile.distance)
            for quantile in quantiles(counts, largest)
        ),
    )
