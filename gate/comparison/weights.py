"""The final weights of reruns against the first run's, by the numbers of `repro-gate diff`.

The largest distance in units in the last place misleads, since near zero any difference is huge
there; so the quantiles are given, and the relative L2 norm of the difference beside them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from gate.checkpoint.digest import check_leaves
from gate.checkpoint.leaves import StateContent, TensorLeaf
from gate.checkpoint.tensor_hashing import run_all
from gate.comparison.changed_tensors import TensorPair, adding
from gate.comparison.element_types import ELEMENT_TYPES
from gate.comparison.measurements import UlpQuantile, WeightDistance, WeightNoise
from gate.comparison.tensor_numbers import CLASSES
from gate.comparison.tensors_tensor_numbers import NumberTotals, TensorNumbers, quantiles

# Optimizer state is no weight.
WEIGHTS: Final = ("/model/", "/parameter/")
Weights = dict[str, TensorLeaf]


def weight_distance(
    left: StateContent, right: StateContent, *, threads: int, max_bytes: int
) -> WeightDistance:
    """The weights that two captured states have in common, paired by name, in one pass.

    What is no float has no distance. Raises `EvidenceError` for a state of more than `max_bytes`,
    for a name that occurs twice and for whatever is wrong with the bytes.
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
    for path, one in ours.items():
        other, kind = theirs.get(path), ELEMENT_TYPES.get(one.dtype)
        if other is None or kind is None or not kind.is_float or kind.parts > 1:
            continue
        if (one.dtype, one.shape) == (other.dtype, other.shape):
            yield TensorPair(one, other)


def _added_up(pairs: Sequence[TensorPair], threads: int) -> NumberTotals:
    """All pairs together. A type has one sum: one for each tensor would take 64 KiB each."""
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
    """All reruns together; a quantile is the end of its class (`block_numbers`)."""
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
