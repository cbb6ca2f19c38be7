"""Compare two saved states leaf by leaf: bytes first, numbers only where bytes differ.

No tensor is held in memory. The first pass compares bytes on all cores and leaves a tensor at its
first differing stretch. The second pass measures the numbers of those tensors, stretch by stretch.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gate.checkpoint.digest import check_leaves
from gate.checkpoint.leaves import Leaf, StateContent, TensorLeaf, ValueLeaf, is_tensor, kind_of
from gate.checkpoint.parts import DEFAULT_EXCLUSIONS, Excluded, Exclusion, part_of, without_excluded
from gate.checkpoint.tensor_hashing import available_threads
from gate.comparison.changed_tensors import TensorPair, changed_tensors, number_differences
from gate.comparison.state_difference import (
    ComparedState,
    LeafChange,
    LeafDifference,
    LeftOut,
    NumberDifference,
    StateDifference,
    parameter_of,
    short_names,
)
from gate.errors import EvidenceError
from gate.text.untrusted_text import short_text

SHOWN_BYTES: Final = 24
# Converting a longer integer to decimal takes time quadratic in its length.
DECIMAL_BYTES: Final = 32
TEXT_KINDS: Final = frozenset(("text", "name", "object"))
MAX_TEXT_BYTES: Final = 4 * 200


def shown_value(leaf: ValueLeaf) -> str:
    """Return a value's kind and content, in at most some hundred printable characters."""
    if leaf.kind == "none" or leaf.kind.startswith("empty"):
        return leaf.kind
    return f"{leaf.kind} {_shown_data(leaf)}"


def _shown_data(leaf: ValueLeaf) -> str:
    number = leaf_number(leaf)
    if number is not None:
        return repr(bool(number)) if leaf.kind == "bool" else repr(number)
    if leaf.kind in TEXT_KINDS:
        # Cut before decoding: the text may be as long as the file.
        return short_text(leaf.data[:MAX_TEXT_BYTES].decode("utf-8", "replace"))
    shown = leaf.data[:SHOWN_BYTES].hex()
    return f"0x{shown}" + (f"... ({len(leaf.data):,} bytes)" if shown != leaf.data.hex() else "")


def leaf_number(leaf: ValueLeaf) -> float | int | None:
    """Return the number that a value is; None if it is none, or too long to be written out."""
    if leaf.kind == "float" and len(leaf.data) == struct.calcsize("<d"):
        return float(struct.unpack("<d", leaf.data)[0])
    if leaf.kind in ("int", "bool") and len(leaf.data) <= DECIMAL_BYTES:
        return int.from_bytes(leaf.data, "little", signed=leaf.kind == "int")
    return None


def relative_gap(left: ValueLeaf, right: ValueLeaf) -> float:
    """Return the difference of two numbers over the larger magnitude; 1 where there is none."""
    first, second = leaf_number(left), leaf_number(right)
    if first is None or second is None or not (math.isfinite(first) and math.isfinite(second)):
        return 1.0
    scale = max(abs(first), abs(second))
    return float(abs(first / scale - second / scale)) if scale else 0.0


STRUCTURE: Final = frozenset(LeafChange) - {LeafChange.CHANGED}


def compare_states(
    left: StateContent,
    right: StateContent,
    *,
    exclusions: Sequence[Exclusion] = DEFAULT_EXCLUSIONS,
    threads: int | None = None,
    max_bytes: int | None = None,
) -> StateDifference:
    """Return every leaf that differs, worst first; excluded leaves do not count.

    `max_bytes` bounds the logical bytes of each state. Raises `EvidenceError` for a larger state,
    for a path that occurs twice, for malformed bytes, and when there is nothing to compare: that is
    never equality (T4).
    """
    sides = [_kept(content, exclusions, max_bytes) for content in (left, right)]
    (ours, our_excluded), (theirs, their_excluded) = sides
    structure = [*_unpaired(ours, theirs), *_retyped(ours, theirs)]
    values, equal_values = _value_differences(ours, theirs)
    pairs = list(_tensor_pairs(ours, theirs))
    # Two empty sides have no difference, but must not count as equal.
    if not ours and not theirs:
        raise EvidenceError(
            f"{left.shown} and {right.shown}: hold nothing to compare",
            hint="Name files that hold a state, or leave fewer leaves out.",
        )
    tensors = _tensor_differences(pairs, threads or available_threads())
    names = _agreed_names(left.parameter_names, right.parameter_names)
    ordered = sorted([*structure, *values, *tensors], key=_badness)
    return StateDifference(
        left=_named(left),
        right=_named(right),
        equal_tensors=len(pairs) - len(tensors),
        equal_values=equal_values,
        differences=tuple(
            replace(difference, parameter=parameter_of(difference.path, names))
            for difference in ordered
        ),
        left_out=_left_out(our_excluded, their_excluded),
    )


Leaves = dict[str, Leaf]


def _kept(
    content: StateContent, exclusions: Sequence[Exclusion], max_bytes: int | None
) -> tuple[Leaves, tuple[Excluded, ...]]:
    kept, excluded = without_excluded(content.leaves, exclusions)
    # `check_leaves` finds duplicate paths by comparing neighbours, so sort first.
    kept.sort(key=lambda leaf: leaf.path)
    check_leaves(content.shown, kept, max_bytes)
    return {leaf.path: leaf for leaf in kept}, excluded


def _named(content: StateContent) -> ComparedState:
    return ComparedState(shown=content.shown, format=content.format, notes=content.notes)


def _agreed_names(left: Mapping[str, str], right: Mapping[str, str]) -> dict[str, str]:
    """Return the names of parameters that neither side contradicts."""
    return short_names(
        {place: leaf for place, leaf in {**left, **right}.items() if left.get(place, leaf) == leaf}
    )


def _left_out(left: Sequence[Excluded], right: Sequence[Excluded]) -> tuple[LeftOut, ...]:
    ours = {(exclusion.pattern, exclusion.reason): exclusion.leaves for exclusion in left}
    theirs = {(exclusion.pattern, exclusion.reason): exclusion.leaves for exclusion in right}
    return tuple(
        LeftOut(
            pattern=pattern,
            reason=reason,
            leaves=(ours.get((pattern, reason), 0), theirs.get((pattern, reason), 0)),
        )
        for pattern, reason in {**ours, **theirs}
    )


def _unpaired(ours: Leaves, theirs: Leaves) -> Iterator[LeafDifference]:
    for path in sorted(ours.keys() ^ theirs.keys()):
        left, right = ours.get(path), theirs.get(path)
        change = LeafChange.EXTRA if left is None else LeafChange.MISSING
        yield _difference(path, change, left, right, math.inf)


def _retyped(ours: Leaves, theirs: Leaves) -> Iterator[LeafDifference]:
    """Yield leaves of both sides that cannot be compared element by element."""
    for path, leaf in ours.items():
        other = theirs.get(path)
        if other is None:
            continue
        if isinstance(leaf, TensorLeaf) and isinstance(other, TensorLeaf):
            if leaf.dtype != other.dtype:
                yield _difference(path, LeafChange.RETYPED, leaf, other, math.inf)
            elif leaf.shape != other.shape:
                yield _difference(path, LeafChange.RESHAPED, leaf, other, math.inf)
        # One side is a tensor and the other a value, or the kinds of value differ.
        elif type(leaf) is not type(other) or kind_of(leaf) != kind_of(other):
            yield _difference(path, LeafChange.RETYPED, leaf, other, math.inf)


def _value_differences(ours: Leaves, theirs: Leaves) -> tuple[list[LeafDifference], int]:
    differences, equal = [], 0
    for path, leaf in ours.items():
        other = theirs.get(path)
        if not isinstance(leaf, ValueLeaf) or not isinstance(other, ValueLeaf):
            continue
        # `_retyped` reports these.
        if leaf.kind != other.kind:
            continue
        if leaf.data == other.data:
            equal += 1
        else:
            gap = relative_gap(leaf, other)
            differences.append(_difference(path, LeafChange.CHANGED, leaf, other, gap))
    return differences, equal


def _tensor_pairs(ours: Leaves, theirs: Leaves) -> Iterator[TensorPair]:
    for path, leaf in ours.items():
        other = theirs.get(path)
        if not isinstance(leaf, TensorLeaf) or not isinstance(other, TensorLeaf):
            continue
        if (leaf.dtype, leaf.shape) == (other.dtype, other.shape):
            yield TensorPair(leaf, other)


def _tensor_differences(pairs: Sequence[TensorPair], threads: int) -> list[LeafDifference]:
    changed = changed_tensors(pairs, threads)
    differences = []
    for pair, numbers in zip(changed, number_differences(changed, threads), strict=True):
        # Without numbers (raw bytes, or sums that overflow float64), it ranks as wholly different.
        gap = 1.0 if numbers is None or numbers.relative_l2 is None else numbers.relative_l2
        differences.append(
            _difference(pair.left.path, LeafChange.CHANGED, pair.left, pair.right, gap, numbers)
        )
    return differences


def _difference(
    path: str,
    change: LeafChange,
    left: Leaf | None,
    right: Leaf | None,
    relative: float,
    numbers: NumberDifference | None = None,
) -> LeafDifference:
    there = left if left is not None else right
    return LeafDifference(
        path=path,
        part=part_of(
            path,
            kind_of(there) if there is not None else "",
            tensor=there is not None and is_tensor(there),
        ),
        change=change,
        left=_shown(left),
        right=_shown(right),
        relative=relative,
        numbers=numbers,
    )


def _shown(leaf: Leaf | None) -> str:
    if leaf is None:
        return ""
    if isinstance(leaf, TensorLeaf):
        return f"{leaf.dtype}{list(leaf.shape)}"
    return shown_value(leaf)


def _badness(difference: LeafDifference) -> tuple[int, float, str]:
    """Return a sort key: different structure first, then changed finiteness, then size."""
    if difference.change in STRUCTURE:
        return 0, 0.0, difference.path
    numbers = difference.numbers
    odd = numbers is not None and numbers.finiteness_moved
    return (1 if odd else 2), -difference.relative, difference.path
