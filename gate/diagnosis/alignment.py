"""Two traces put beside each other, call by call, over calls that only one of them has.

A call that one side alone has, such as a printed number, moves no result: the calls behind it are
the same ones with the same values. Such a block is passed over and remembered. Where the values
behind it are others, the code took another path there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gate.evidence.observed_trace import TracedCall, TracedValue

LONGEST_BLOCK: Final = 40
AGREEING_CALLS: Final = 8
AGREEING_VALUES: Final = 4
MAX_BLOCKS: Final = 50
Calls = Sequence[TracedCall]


@dataclass(frozen=True, slots=True)
class Block:
    """Calls that one side has alone: places in the two sequences, ends not included."""

    expected: range
    observed: range


@dataclass(frozen=True, kw_only=True, slots=True)
class Alignment:
    """Pairs of places in the two sequences; `parted` is where they no longer fit together."""

    pairs: tuple[tuple[int, int], ...]
    blocks: tuple[Block, ...]
    parted: tuple[int, int] | None


def align(expected: Calls, observed: Calls) -> Alignment:
    """Pair the calls of two traces in order, up to where the two take different paths."""
    pairs, blocks = list[tuple[int, int]](), list[Block]()
    one = other = 0
    while one < len(expected) and other < len(observed):
        if same_call(expected[one], observed[other]):
            pairs.append((one, other))
            one, other = one + 1, other + 1
            continue
        block = _block(expected, observed, one, other) if len(blocks) < MAX_BLOCKS else None
        if block is None:
            return Alignment(pairs=tuple(pairs), blocks=tuple(blocks), parted=(one, other))
        blocks.append(block)
        one, other = block.expected.stop, block.observed.stop
    return Alignment(pairs=tuple(pairs), blocks=tuple(blocks), parted=None)


def same_call(expected: TracedCall, observed: TracedCall) -> bool:
    """The same operator on tensors of the same types and shapes, in the same phase."""
    return (
        expected.operator == observed.operator
        and expected.phase is observed.phase
        and _forms(expected.inputs) == _forms(observed.inputs)
        and _forms(expected.outputs) == _forms(observed.outputs)
    )


def values_differ(expected: TracedValue, observed: TracedValue) -> bool:
    """Whether both were read and are not the same."""
    return bool(expected.digest and observed.digest) and expected.digest != observed.digest


def layouts_differ(expected: TracedValue, observed: TracedValue) -> bool:
    """Whether both were looked at, and lie in memory in two ways."""
    return expected.layout != observed.layout


def _forms(values: tuple[TracedValue, ...]) -> list[tuple[str, str, str]]:
    return [(value.name, value.form, value.device) for value in values]


def _block(expected: Calls, observed: Calls, one: int, other: int) -> Block | None:
    """The shortest block behind which the two agree again, in values too; else None."""
    for length in range(1, LONGEST_BLOCK + 1):
        for skipped in range(length + 1):
            ends = one + skipped, other + length - skipped
            calls = (*expected[one : ends[0]], *observed[other : ends[1]])
            if _agree(expected, observed, *ends, drew=any(call.random for call in calls)):
                return Block(range(one, ends[0]), range(other, ends[1]))
    return None


def _agree(expected: Calls, observed: Calls, one: int, other: int, *, drew: bool) -> bool:
    """Whether the next calls are the same; `drew`: a block that drew numbers moves later draws."""
    read, moved = 0, False
    for place in range(AGREEING_CALLS):
        if one + place >= len(expected) or other + place >= len(observed):
            return False
        left, right = expected[one + place], observed[other + place]
        if not same_call(left, right) or left.arguments != right.arguments:
            return False
        moved = moved or (drew and left.random)
        values = tuple(zip(left.outputs, right.outputs, strict=True))
        if not moved and any(values_differ(*pair) for pair in values):
            return False
        read += any(pair[0].digest and pair[1].digest for pair in values)
    return read >= AGREEING_VALUES
