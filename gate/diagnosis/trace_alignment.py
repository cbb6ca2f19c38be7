"""Align two operator traces, and find the calls at which a difference enters.

A call on one side alone, such as one that prints a number, changes no result: the calls after it
are the same, with equal values. The alignment skips such a block and remembers it. If the values
after it differ, the code took a different path there.

A difference is followed through memory. A call that got its differing input from a differing call
only passes the difference on. The entry that counts is the first one that reaches an update of the
weights, so a clock that is merely logged is no cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gate.evidence.trace import NOBODY, Phase, TracedCall, TracedValue

# The search for a block tries about LONGEST_BLOCK² / 2 pairs of ends. These limits bound its time,
# because a trace is untrusted and may be long.
LONGEST_BLOCK: Final = 40
# This many calls must agree after a block, with this many values read: fewer may match by chance.
AGREEING_CALLS: Final = 8
AGREEING_VALUES: Final = 4
MAX_BLOCKS: Final = 50
Calls = Sequence[TracedCall]


@dataclass(frozen=True, slots=True)
class Block:
    """Calls that only one side has, as half-open ranges of places in the two sequences."""

    expected: range
    observed: range


@dataclass(frozen=True, kw_only=True, slots=True)
class Alignment:
    """Pairs of places in the two sequences; `parted` is the place at which pairing had to stop.

    `parted` is None where one of the traces ended first.
    """

    pairs: tuple[tuple[int, int], ...]
    blocks: tuple[Block, ...]
    parted: tuple[int, int] | None


def align(expected: Calls, observed: Calls, *, same_gradients: bool = False) -> Alignment:
    """Pair the calls of two traces in order, up to where the two take different paths.

    `same_gradients`: fingerprints show that backward passes gave equal gradients on any path, so a
    different path there may be skipped as a whole.
    """
    pairs, blocks = list[tuple[int, int]](), list[Block]()
    left = right = 0
    while left < len(expected) and right < len(observed):
        if same_call(expected[left], observed[right]):
            pairs.append((left, right))
            left, right = left + 1, right + 1
            continue
        block = _block(expected, observed, left, right) if len(blocks) < MAX_BLOCKS else None
        if block is None and same_gradients:
            block = _up_to_the_update(expected, observed, left, right)
        if block is None:
            return Alignment(pairs=tuple(pairs), blocks=tuple(blocks), parted=(left, right))
        blocks.append(block)
        left, right = block.expected.stop, block.observed.stop
    return Alignment(pairs=tuple(pairs), blocks=tuple(blocks), parted=None)


def same_call(expected: TracedCall, observed: TracedCall) -> bool:
    """Return whether both calls use one operator, types, shapes and devices, in one phase."""
    return (
        expected.operator == observed.operator
        and expected.phase is observed.phase
        and _forms(expected.inputs) == _forms(observed.inputs)
        and _forms(expected.outputs) == _forms(observed.outputs)
    )


def values_differ(expected: TracedValue, observed: TracedValue) -> bool:
    """Return whether both values were read and differ."""
    return bool(expected.digest and observed.digest) and expected.digest != observed.digest


def layouts_differ(expected: TracedValue, observed: TracedValue) -> bool:
    """Return whether the memory layouts differ."""
    return expected.layout != observed.layout


def _forms(values: tuple[TracedValue, ...]) -> list[tuple[str, str, str]]:
    return [(value.name, value.form, value.device) for value in values]


def _block(expected: Calls, observed: Calls, left: int, right: int) -> Block | None:
    """Return the shortest block after which both sides agree again, in values too; else None."""
    for length in range(1, LONGEST_BLOCK + 1):
        for skipped in range(length + 1):
            ends = left + skipped, right + length - skipped
            calls = (*expected[left : ends[0]], *observed[right : ends[1]])
            if _agree(expected, observed, *ends, drew=any(call.random for call in calls)):
                return Block(range(left, ends[0]), range(right, ends[1]))
    return None


def _up_to_the_update(expected: Calls, observed: Calls, first: int, second: int) -> Block | None:
    """Return a block that reaches to the end of the step's backward pass; None where none follows.

    There may be two ways to the same gradients, for example with recomputed activations. A value
    that was made in the block and differs anyway is still traced to its maker.
    """
    left, right = _behind_backward(expected, first), _behind_backward(observed, second)
    known = left is not None and right is not None
    return Block(range(first, left or 0), range(second, right or 0)) if known else None


def _behind_backward(calls: Calls, place: int) -> int | None:
    """Return the place after the last backward call of this step; None where none follows."""
    step, last = calls[place].step, None
    for number in range(place, len(calls)):
        if calls[number].step != step:
            break
        last = number + 1 if calls[number].phase is Phase.BACKWARD else last
    return last


def _agree(expected: Calls, observed: Calls, first: int, second: int, *, drew: bool) -> bool:
    """Return whether the next calls agree on both sides, and enough values of them were read.

    `drew`: the block drew random numbers, so later draws and what they feed differ as a
    consequence.
    """
    read, moved = 0, False
    for place in range(AGREEING_CALLS):
        if first + place >= len(expected) or second + place >= len(observed):
            return False
        left, right = expected[first + place], observed[second + place]
        if not same_call(left, right) or left.arguments != right.arguments:
            return False
        moved = moved or (drew and left.random)
        values = tuple(zip(left.outputs, right.outputs, strict=True))
        if not moved and any(values_differ(*pair) for pair in values):
            return False
        read += any(pair[0].digest and pair[1].digest for pair in values)
    return read >= AGREEING_VALUES


Pairs = tuple[tuple[TracedValue, TracedValue], ...]
READS_A_NUMBER: Final = "aten::_local_scalar_dense"
MESSAGES: Final = re.compile(r"send|recv|isend|irecv|wait_tensor")
OTHER_RANKS: Final = ("c10d", "_c10d_functional", "c10d_functional", "symm_mem")
# These overwrite their target without reading it. Operators that draw random numbers do so too.
OVERWRITE: Final = ("aten::copy_", "aten::fill_", "aten::zero_", "aten::_foreach_copy_")


@dataclass(frozen=True, slots=True)
class Root:
    """A pair of places at which a difference enters, and the inputs that differ there."""

    expected: int
    observed: int
    inputs: Pairs


def find_root(expected: Calls, observed: Calls, alignment: Alignment) -> Root | None:
    """Return the first entry of a difference that reaches an update; else the first of all."""
    search = _Search()
    for left, right in alignment.pairs:
        search.look(left, right, expected[left], observed[right])
    return search.root


def find_read(expected: Calls, observed: Calls, alignment: Alignment) -> Root | None:
    """Return the first pair of calls that read different values, or None.

    It finds values that reach no gradient, such as the number of a loss.
    """
    for left, right in alignment.pairs:
        inputs = tuple(_differing(_read(expected[left]), _read(observed[right])))
        if inputs:
            return Root(left, right, inputs)
    return None


class _Search:
    """Follows differences from call to call; `root` is the entry that counts.

    The earliest entry is kept for each phase that a difference reaches, since only a difference in
    an update changes the result.
    """

    def __init__(self) -> None:
        self._origin: dict[int, Root] = {}
        self._read: Root | None = None
        self._compiled: Root | None = None
        self._reached: dict[Phase, Root] = {}
        self._first: Root | None = None
        self._forward: dict[tuple[str, int], Root] = {}

    @property
    def root(self) -> Root | None:
        """The first entry that reaches an update, else a gradient, else anything at all.

        No traced call makes a sparse gradient. An update that takes one shows a difference that
        reached a gradient before.
        """
        reached = self._reached
        update, gradient = reached.get(Phase.OPTIMIZER), reached.get(Phase.BACKWARD)
        if update and gradient and is_unmade(update.inputs):
            return min(update, gradient, key=lambda root: root.expected)
        return update or gradient or self._first

    def look(self, left_place: int, right_place: int, left: TracedCall, right: TracedCall) -> None:
        """Take the next pair of calls, at their places in the two sequences; call it in order."""
        inputs = tuple(_differing(_read(left), _read(right)))
        # An input whose value was not read counts as different if the call that made it differs.
        root = _earliest(self._origin, inputs or unread(left, right))
        if left.operator == READS_A_NUMBER:
            self._read = self._read or root
            return
        # The result of a collective is not read here. It counts as different as far as this rank's
        # input.
        passed_on = namespace(left) in OTHER_RANKS and bool(inputs)
        if not passed_on and not tuple(_differing(left.outputs, right.outputs)):
            placed = bool(_placed_apart(left.outputs, right.outputs))
            if placed and root is None:
                root = self._in_another_place(left_place, right_place, left, right)
            # Other parts of the same memory differ, and further views refer to the latest view of
            # it.
            if root is not None and (left.view or placed):
                self._origin[left.number] = root
            return
        root = (
            root
            or self._hidden(left, right, inputs)
            or self._new(left_place, right_place, left, inputs)
        )
        self._first = self._first or root
        self._origin[left.number] = root
        if left.compiled:
            self._compiled = self._compiled or root
        known = self._reached.get(left.phase)
        if known is None or root.expected < known.expected:
            self._reached[left.phase] = root

    def _in_another_place(
        self, left_place: int, right_place: int, left: TracedCall, right: TracedCall
    ) -> Root:
        """Return the entry of a call that writes or views equal values elsewhere in its memory."""
        inputs = _placed_apart(left.inputs, right.inputs)
        return _earliest(self._origin, inputs) or Root(left_place, right_place, inputs)

    def _hidden(self, left: TracedCall, right: TracedCall, inputs: Pairs) -> Root | None:
        """Return a known entry whose difference came here by an untraced way, else None."""
        if left.arguments != right.arguments and self._read is not None:
            # The changed argument is a number that the script read from a tensor.
            return self._read
        unmade = inputs and all(set(value.made_by) <= {NOBODY} for value, _ in inputs)
        # No traced call made these inputs, so a kernel inside compiled code did.
        return self._compiled if unmade else None

    def _new(self, left_place: int, right_place: int, left: TracedCall, inputs: Pairs) -> Root:
        root = Root(left_place, right_place, inputs)
        # A backward call has no line of its own. It repeats its forward call, for example with a
        # different number, so the forward call's entry is the cause.
        behind = (left.forward_file, left.forward_line)
        root = self._forward.get(behind, root) if not left.file else root
        self._forward.setdefault((left.file, left.line), root)
        return root


def is_unmade(inputs: Pairs) -> bool:
    """Return whether some of these values were made by no traced call, on either side."""
    return any(NOBODY in value.made_by for pair in inputs for value in pair)


def _read(call: TracedCall) -> tuple[TracedValue, ...]:
    """Return the inputs whose values an operator reads.

    Inputs that it only overwrites are left out: they may hold anything.
    """
    read = tuple(value for value in call.inputs if not value.overwritten)
    if not call.random and call.operator not in OVERWRITE:
        return read
    written = {value.name for value in call.outputs}
    return tuple(value for value in read if value.name not in written)


def _differing(
    expected: tuple[TracedValue, ...], observed: tuple[TracedValue, ...]
) -> Iterator[tuple[TracedValue, TracedValue]]:
    for pair in zip(expected, observed, strict=True):
        if values_differ(*pair):
            yield pair


def _placed_apart(expected: tuple[TracedValue, ...], observed: tuple[TracedValue, ...]) -> Pairs:
    """Return the pairs that begin in different places of their storages."""
    pairs = zip(expected, observed, strict=True)
    return tuple((left, right) for left, right in pairs if left.offset != right.offset)


def _earliest(origin: dict[int, Root], inputs: Pairs) -> Root | None:
    origins = [origin[by] for left, _ in inputs for by in left.made_by if by in origin]
    return min(origins, key=lambda root: root.expected, default=None)


def namespace(call: TracedCall) -> str:
    """Return the operator's namespace, for example `aten`."""
    return call.operator.partition("::")[0]


def is_collective(call: TracedCall) -> bool:
    """Return whether all ranks of a group make this call together.

    Messages between two ranks are no collectives.
    """
    return namespace(call) in OTHER_RANKS and not MESSAGES.match(call.operator.partition("::")[2])


def unread(expected: TracedCall, observed: TracedCall) -> Pairs:
    """Return the input pairs whose values are unknown on one side: too large, or only viewed."""
    pairs = zip(_read(expected), _read(observed), strict=True)
    return tuple((left, right) for left, right in pairs if not (left.digest and right.digest))


def outputs_apart(expected: TracedCall, observed: TracedCall) -> tuple[float, float] | None:
    """Return the largest absolute difference of sampled outputs, and its share of the largest.

    Only the first output with a finite difference counts. None where the samples show none.
    """
    for left, right in _differing(expected.outputs, observed.outputs):
        pairs = tuple(
            (_number(first), _number(second))
            for first, second in zip(left.sample, right.sample, strict=False)
        )
        absolute = max((abs(first - second) for first, second in pairs), default=0.0)
        scale = max((abs(first) for first, _ in pairs), default=0.0)
        if 0 < absolute < float("inf") and scale > 0:
            return absolute, absolute / scale
    return None


def _number(text: str) -> float:
    try:
        return float.fromhex(text)
    except (ValueError, OverflowError):
        return float("nan")
