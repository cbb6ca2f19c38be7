"""Where a difference enters a trace: calls whose output differs while nothing before explains it.

A difference is followed through memory: a call whose differing input was made by a differing call
only passes it on. The first entry that reaches an update of the weights is the one that counts, so
a clock that is merely logged is no cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gate.diagnosis.alignment import Alignment, Calls, values_differ
from gate.records.observed.trace import Phase, TracedCall, TracedValue

READS_A_NUMBER: Final = "aten::_local_scalar_dense"
OTHER_RANKS: Final = ("c10d", "_c10d_functional", "c10d_functional", "symm_mem")
# what they write into is not read by them, as it is not by those that draw
OVERWRITE: Final = ("aten::copy_", "aten::fill_", "aten::zero_", "aten::_foreach_copy_")


@dataclass(frozen=True, slots=True)
class Root:
    """A pair of places at which a difference enters, and the inputs that differ there."""

    expected: int
    observed: int
    inputs: tuple[tuple[TracedValue, TracedValue], ...]


def find_root(expected: Calls, observed: Calls, alignment: Alignment) -> Root | None:
    """The first entry of a difference that reaches an update; else the first of all."""
    origin: dict[int, Root] = {}
    read: Root | None = None
    reached: dict[Phase, Root] = {}
    first: Root | None = None
    forward = dict[tuple[str, int], Root]()
    for one, other in alignment.pairs:
        left, right = expected[one], observed[other]
        inputs = tuple(_differing(_read(left), _read(right)))
        root = _earliest(origin, inputs)
        if left.operator == READS_A_NUMBER and inputs:
            read = read or root
            continue
        if namespace(left) in OTHER_RANKS and inputs:
            # what it brings is not read here: it is as far off as what this rank gave
            origin[left.number] = root or Root(one, other, inputs)
            first = first or origin[left.number]
            continue
        if not tuple(_differing(left.outputs, right.outputs)):
            continue
        if root is None and left.arguments != right.arguments and read is not None:
            # the number came from a tensor that differed already
            root = read
        if root is None:
            root = Root(one, other, inputs)
            # a backward call repeats what its forward call did: with another number, for example
            behind = (left.forward_file, left.forward_line)
            root = forward.get(behind, root) if not left.file else root
            forward.setdefault((left.file, left.line), root)
        first = first or root
        origin[left.number] = root
        known = reached.get(left.phase)
        if known is None or root.expected < known.expected:
            reached[left.phase] = root
    return reached.get(Phase.OPTIMIZER) or reached.get(Phase.BACKWARD) or first


def _read(call: TracedCall) -> tuple[TracedValue, ...]:
    """The inputs that an operator reads: what it only overwrites may hold anything."""
    if not call.random and call.operator not in OVERWRITE:
        return tuple(value for value in call.inputs if value.name != "out")
    written = {value.name for value in call.outputs}
    return tuple(value for value in call.inputs if value.name not in written)


def _differing(
    expected: tuple[TracedValue, ...], observed: tuple[TracedValue, ...]
) -> Iterator[tuple[TracedValue, TracedValue]]:
    for pair in zip(expected, observed, strict=True):
        if values_differ(*pair):
            yield pair


def _earliest(
    origin: dict[int, Root], inputs: tuple[tuple[TracedValue, TracedValue], ...]
) -> Root | None:
    found = [origin[by] for left, _ in inputs for by in left.made_by if by in origin]
    return min(found, key=lambda root: root.expected, default=None)


def namespace(call: TracedCall) -> str:
    """For example `aten`."""
    return call.operator.partition("::")[0]


def outputs_apart(expected: TracedCall, observed: TracedCall) -> tuple[float, float] | None:
    """The largest absolute difference among sampled outputs, and over their largest value."""
    for left, right in _differing(expected.outputs, observed.outputs):
        pairs = tuple(
            (_number(one), _number(other))
            for one, other in zip(left.sample, right.sample, strict=False)
        )
        absolute = max((abs(one - other) for one, other in pairs), default=0.0)
        scale = max((abs(one) for one, _ in pairs), default=0.0)
        if 0 < absolute < float("inf") and scale > 0:
            return absolute, absolute / scale
    return None


def _number(text: str) -> float:
    try:
        return float.fromhex(text)
    except (ValueError, OverflowError):
        return float("nan")
