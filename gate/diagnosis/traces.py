"""Two operator traces compared: which call parts them, and what that shows.

A trace is followed on the main thread, where order means something. What the script's other
threads wrote is known by the number of their calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gate.diagnosis.alignment import Alignment, Block, Calls, align
from gate.diagnosis.roots import (
    OTHER_RANKS,
    Pairs,
    Root,
    find_read,
    find_root,
    namespace,
    outputs_apart,
    unread,
)
from gate.diagnosis.trace_words import Point, agreement, finding_at, not_found
from gate.records.observed.trace import NOBODY, RankTrace, TracedCall, Traces
from gate.records.observed.traced import Claim, TraceFinding

HIGHER: Final = "higher_order"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """The traces of one rank in two runs, and their calls of the main thread."""

    expected: RankTrace
    observed: RankTrace
    drift: bool

    @property
    def calls(self) -> tuple[Calls, Calls]:
        """Of the main thread, in order."""
        return _main(self.expected), _main(self.observed)


def compare_traces(expected: Traces, observed: Traces, *, drift: bool) -> TraceFinding:
    """The first call that parts two runs, over all ranks; `drift`: base against head."""
    others = {trace.rank: trace for trace in observed}
    pairs = [
        Pair(expected=trace, observed=others[trace.rank], drift=drift)
        for trace in expected
        if trace.rank in others
    ]
    if not pairs:
        return not_found("no process that trains left a trace in both runs")
    found = [point for pair in pairs if (point := _point(pair)) is not None]
    if not found:
        return agreement(tuple(pair.observed for pair in pairs), drift=drift)
    # what came over from another rank is told by that rank, where it can be
    own = [point for point in found if not point.from_another_rank] or found
    return finding_at(min(own, key=lambda point: (point.first_use.step, point.first_use.number)))


def _main(trace: RankTrace) -> Calls:
    return tuple(call for call in trace.calls if call.thread == 0)


def _point(pair: Pair) -> Point | None:
    """Where a rank's traces part; None where they agree as far as they go."""
    expected, observed = pair.calls
    alignment = align(expected, observed)
    root = find_root(expected, observed, alignment)
    if root is None and alignment.blocks:
        # what one side calls alone may make a value that no later call's output depends on
        read = find_read(expected, observed, alignment)
        made = read and _block_behind(pair, alignment, read, expected[read.expected])
        root = read if made else None
    if root is not None:
        return _classified(pair, alignment, root)
    if alignment.parted is None:
        return None
    one, other = alignment.parted
    return Point(
        claim=Claim.CODE_PATH,
        expected=expected[one],
        observed=observed[other],
        at=(one, other),
        first_use=observed[other],
        expected_calls=expected,
        observed_calls=observed,
        alignment=alignment,
        drift=pair.drift,
        rank=pair.expected.rank,
    )


def _classified(pair: Pair, alignment: Alignment, root: Root) -> Point:
    expected, observed = pair.calls
    use, right_use = expected[root.expected], observed[root.observed]
    left: TracedCall | None = use
    right: TracedCall | None = right_use
    block = _block_behind(pair, alignment, root, use)
    if block is not None:
        left = expected[block.expected.start] if block.expected else None
        right = observed[block.observed.start] if block.observed else None
        claim, source = Claim.CODE_PATH, None
    else:
        claim, source = _claim(pair, alignment, root, use, right_use)
    return Point(
        claim=claim,
        expected=left,
        observed=right,
        at=(root.expected, root.observed),
        expected_calls=expected,
        observed_calls=observed,
        alignment=alignment,
        drift=pair.drift,
        rank=pair.expected.rank,
        source=source,
        first_use=right_use,
        apart=outputs_apart(use, right_use),
        from_another_rank=source is not None and namespace(source) in OTHER_RANKS,
    )


def _block_behind(pair: Pair, alignment: Alignment, root: Root, call: TracedCall) -> Block | None:
    """Calls of one side alone that explain a difference: they made an input, or drew before."""
    expected, observed = pair.calls
    left = {by for value, _ in root.inputs for by in value.made_by}
    right = {by for _, value in root.inputs for by in value.made_by}
    for block in alignment.blocks:
        mine = [expected[place] for place in block.expected]
        theirs = [observed[place] for place in block.observed]
        made = any(one.number in left for one in mine) or any(one.number in right for one in theirs)
        drew = call.random and not root.inputs and any(one.random for one in (*mine, *theirs))
        if made or drew:
            return block
    return None


def _claim(
    pair: Pair, alignment: Alignment, root: Root, left: TracedCall, right: TracedCall
) -> tuple[Claim, TracedCall | None]:
    """What a difference that enters at this call is, and the call that the value came from."""
    if left.arguments != right.arguments:
        return (Claim.CODE_PATH if pair.drift else Claim.OUTSIDE_VALUE), None
    # that an operator is at fault takes inputs that are known to be equal
    inputs = root.inputs or unread(left, right)
    if _made_elsewhere(pair, alignment, inputs):
        return Claim.OTHER_TENSORS, None
    if inputs:
        return _of_inputs(pair.observed.calls, inputs, right)
    if left.random:
        return Claim.RANDOM_STATE, None
    if left.compiled or namespace(left) == HIGHER:
        return Claim.BELOW_DISPATCHER, None
    return Claim.NONDETERMINISTIC_OPERATOR, None


def _made_elsewhere(pair: Pair, alignment: Alignment, inputs: Pairs) -> bool:
    """Whether calls made a pair's values that are not each other's, all known on both sides.

    Such as rows of a list that is shuffled by Python: each is as it was, and others are taken.
    """
    expected, observed = pair.calls
    same = {expected[one].number: observed[other].number for one, other in alignment.pairs}
    theirs = set(same.values())
    return any(
        {*left.made_by} <= same.keys()
        and {*right.made_by} <= theirs
        and tuple(same[by] for by in left.made_by) != right.made_by
        for left, right in inputs
    )


def _of_inputs(calls: Calls, inputs: Pairs, use: TracedCall) -> tuple[Claim, TracedCall | None]:
    """A value differs that no differing call made: where could it come from?"""
    for _, value in inputs:
        if value.unset_by and (bare := _call(calls, value.unset_by[0])) is not None:
            return Claim.UNINITIALISED, bare
    makers = [
        made
        for _, value in inputs
        for by in value.made_by
        if by != NOBODY and (made := _call(calls, by)) is not None
    ]
    told: tuple[Callable[[TracedCall], bool], ...] = (
        lambda call: call.thread != 0,
        lambda call: namespace(call) in OTHER_RANKS,
    )
    for of_this_kind in told:
        made = next(filter(of_this_kind, makers), None)
        if made is not None:
            return Claim.OUTSIDE_VALUE, made
    if makers:
        return Claim.BELOW_DISPATCHER, makers[0]
    if use.compiled:
        return Claim.BELOW_DISPATCHER, None
    return Claim.OUTSIDE_VALUE, None


def _call(calls: Calls, number: int) -> TracedCall | None:
    return calls[number] if number < len(calls) else None
