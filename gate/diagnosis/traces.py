"""Compare two operator traces: which call diverges first, and what that shows.

A trace is followed on the main thread, where order means something, or on the thread that trains in
its place. Writes by the script's other threads are known by the numbers of their calls.

The rule is elimination: an operator is called nondeterministic only when every input, layout,
argument, setting and generator state was compared and is equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gate.diagnosis.trace_alignment import (
    OTHER_RANKS,
    Alignment,
    Block,
    Calls,
    Pairs,
    Root,
    align,
    find_read,
    find_root,
    is_collective,
    is_unmade,
    layouts_differ,
    namespace,
    outputs_apart,
    unread,
)
from gate.diagnosis.trace_divergence import TraceDivergence
from gate.diagnosis.trace_words import (
    agreement,
    finding_at,
    not_finite_at,
    not_found,
)
from gate.evidence.trace import (
    NOBODY,
    Claim,
    NoTrace,
    Origin,
    Phase,
    RankTrace,
    TracedCall,
    TracedValue,
    TraceFinding,
    Traces,
)

HIGHER: Final = "higher_order"
TAKES_A_STORAGE: Final = "aten::set_"
BARE: Final = ("aten::empty", "size=[0],")
FROM_ANY_RANK: Final = "c10d::recv_any_source_"
PAIR: Final = 2
# A view of a view, such as a row of a row. Deeper chains are not followed.
MOST_VIEWS: Final = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """The traces of one rank in two runs, and their calls of the main thread.

    `logged` says that what differs is only written down or kept to the end, so later calls need not
    depend on it. `same_gradients` says that it comes after backward passes with equal gradients.
    """

    expected: RankTrace
    observed: RankTrace
    drift: bool
    logged: bool = False
    same_gradients: bool = False

    @property
    def calls(self) -> tuple[Calls, Calls]:
        """The calls of the main thread in order, without those that take a worker's data.

        Those come whenever the data arrives, so their place means nothing.
        """
        return _main(self.expected), _main(self.observed)


@dataclass(frozen=True, slots=True)
class ShownDifference:
    """What a difference shows.

    `source` is the call that made the value. `unchecked` says what could not be compared.
    """

    claim: Claim
    source: TracedCall | None = None
    settings: tuple[tuple[str, str, str], ...] = ()
    unchecked: str = ""


def compare_traces(
    expected: Traces,
    observed: Traces,
    *,
    drift: bool,
    logged: bool = False,
    same_gradients: bool = False,
) -> TraceFinding:
    """Find the first call at which two runs diverge, over all ranks; `drift`: base against head.

    `logged`: what differs is a number that the script writes down, or a buffer at the end.
    `same_gradients`: fingerprints show that it comes after backward passes with equal gradients.
    """
    others = {trace.rank: trace for trace in observed}
    pairs = [
        Pair(
            expected=_followed(trace),
            observed=_followed(others[trace.rank]),
            drift=drift,
            logged=logged,
            same_gradients=same_gradients,
        )
        for trace in expected
        if trace.rank in others
    ]
    if not pairs:
        why = "no training process left a trace in both runs"
        return not_found(why, NoTrace.NOTHING_LEFT)
    points = [point for pair in pairs if (point := _point(pair)) is not None]
    if not points:
        return agreement(tuple(pair.observed for pair in pairs), drift=drift)
    # A value that came from a different rank is reported by the rank that sent it, if possible.
    own = [point for point in points if not point.from_another_rank]
    first = min(own or points, key=_when)
    # Every rank only received a different value. If all of them gave equal values in both runs, the
    # collective itself is the cause.
    if not own and len(pairs) > 1 and _equal_before(first, pairs):
        first = replace(first, claim=Claim.COLLECTIVE)
    received = [point for point in points if point.from_another_rank and point.rank != first.rank]
    return finding_at(first, received, ranks=len(pairs))


def _when(point: TraceDivergence) -> tuple[int, int, int]:
    """Return a sort key for points of different ranks: step, collectives so far, call number.

    Ranks share no clock. But all of them call the collectives in one order, so these synchronise
    them.
    """
    collectives = sum(map(is_collective, point.expected_calls[: point.at[0]]))
    return point.first_use.step, collectives, point.first_use.number


def _equal_before(point: TraceDivergence, pairs: Sequence[Pair]) -> bool:
    """Return whether every rank gave the point's source collective equal values in both runs.

    Every value has to be known: one that was not read may be the one that differs.
    """
    source = point.source
    if source is None or not is_collective(source):
        return False
    # Collectives are paired by their number, because all ranks call them in one order.
    number = sum(map(is_collective, point.expected_calls[: source.number]))
    given = [_collective(pair, number) for pair in pairs]
    return all(
        first is not None
        and second is not None
        and first.operator == second.operator == source.operator
        and bool(first.inputs)
        and all(
            left.digest and left.digest == right.digest
            for left, right in zip(first.inputs, second.inputs, strict=False)
        )
        for first, second in given
    )


def _collective(pair: Pair, number: int) -> tuple[TracedCall | None, TracedCall | None]:
    """Return collective `number` (from 0) of a rank in both runs, None where a run has fewer."""
    collectives = ([call for call in calls if is_collective(call)] for calls in pair.calls)
    left, right = (calls[number] if number < len(calls) else None for calls in collectives)
    return left, right


def first_not_finite_call(traces: Traces, *, infinite: bool) -> TraceFinding:
    """Find the first call whose output has a NaN (or infinity) while its inputs have none."""
    odd = "infinite" if infinite else "nan"
    calls_found = [
        (call.step, call.number, trace.rank, call)
        for trace in traces
        for call in trace.calls
        if _is_odd(call.outputs, odd) and not _is_odd(call.inputs, odd)
    ]
    if not calls_found:
        return not_found("no traced call makes the first one", NoTrace.NOTHING_LEFT)
    # Calls themselves have no order, so compare only step, number and rank.
    _, _, rank, call = min(calls_found, key=lambda row: row[:3])
    return not_finite_at(call, rank, infinite=infinite)


def _is_odd(values: tuple[TracedValue, ...], odd: str) -> bool:
    return any(value.odd == odd for value in values)


def _followed(trace: RankTrace) -> RankTrace:
    """Return the trace with the thread that trains in place of the main thread.

    The main thread's calls up to the training thread's first one are kept before it. Its later
    calls count as a different thread's. The trace is unchanged if the main thread trains, or
    several do.
    """
    (trains, *more) = {call.thread for call in trace.calls if call.phase is Phase.OPTIMIZER} or {0}
    if more or trains == 0:
        return trace
    begun = next(call.number for call in trace.calls if call.thread == trains)
    swapped = {trains: 0, 0: trains}
    calls = (
        call
        if call.thread == 0 and call.number < begun
        else call.model_copy(update={"thread": swapped.get(call.thread, call.thread)})
        for call in trace.calls
    )
    return trace.model_copy(update={"calls": tuple(calls)})


def _main(trace: RankTrace) -> Calls:
    calls = [call for call in trace.calls if call.thread == 0]
    arrived = [_arrives(call) for call in calls]
    # torch creates an empty tensor first, which then takes the storage. Both calls are left out.
    ahead = [*arrived[1:], False]
    return tuple(
        call
        for call, own, next_one in zip(calls, arrived, ahead, strict=True)
        if not own and not (next_one and _is_bare(call))
    )


def _arrives(call: TracedCall) -> bool:
    """Return whether the call takes what a DataLoader worker sent.

    It comes early or late, depending on when the data was ready, so its place means nothing.
    """
    return call.origin is Origin.WORKER and call.operator == TAKES_A_STORAGE


def _is_bare(call: TracedCall) -> bool:
    operator, size = BARE
    return call.operator == operator and call.arguments.startswith(size)


def _point(pair: Pair) -> TraceDivergence | None:
    """Return where a rank's traces diverge; None where they agree as far as they go."""
    expected, observed = pair.calls
    alignment = align(expected, observed, same_gradients=pair.same_gradients)
    root = find_root(expected, observed, alignment)
    if root is None and alignment.blocks:
        # Calls on one side alone may make a value that no later output depends on.
        read = find_read(expected, observed, alignment)
        made = read and _block_behind(pair, alignment, read.inputs, expected[read.expected])
        root = read if made else None
    if root is not None:
        return _classified(pair, alignment, root)
    parted = alignment.parted
    # No later call depends on a number that is only logged, so no difference enters anywhere.
    if parted is None and pair.logged:
        return _behind_what_is_kept(pair, alignment)
    if parted is None:
        return _of_another_form(pair, alignment)
    sides = expected[parted[0]], observed[parted[1]]
    block = _forward_block(pair, alignment, sides)
    return (
        _at_block(pair, alignment, block) if block else _other_path(pair, alignment, parted, sides)
    )


def _forward_block(pair: Pair, alignment: Alignment, sides: Calls) -> Block | None:
    """Return the block of the forward pass that two calls of the backward pass repeat, or None."""
    lines = {(call.forward_file, call.forward_line) for call in sides if not call.file}
    expected, observed = pair.calls
    for block in alignment.blocks:
        calls = [expected[place] for place in block.expected]
        calls += [observed[place] for place in block.observed]
        if any((call.file, call.line) in lines for call in calls):
            return block
    return None


def _of_another_form(pair: Pair, alignment: Alignment) -> TraceDivergence | None:
    """Return the first block that only follows worker data of a different type or shape.

    None where there is no such block.
    """
    expected, observed = pair.calls
    for block in alignment.blocks:
        if block.expected and block.observed:
            at = block.expected.start, block.observed.start
            sides = expected[at[0]], observed[at[1]]
            if _taken_by(pair, *sides) is not None:
                return _other_path(pair, alignment, at, sides)
    return None


def _behind_what_is_kept(pair: Pair, alignment: Alignment) -> TraceDivergence | None:
    """Return the first diverging call on which no later call depends, or None.

    Such calls make what is written down or stays in the state. The order is: calls with different
    arguments, then blocks where both sides call something else, then blocks of one side alone.
    """
    expected, observed = pair.calls
    for first, second in alignment.pairs if pair.drift else ():
        left, right = expected[first], observed[second]
        if left.arguments != right.arguments:
            return _other_path(pair, alignment, (first, second), (left, right))
    if not alignment.blocks:
        return None
    block = min(alignment.blocks, key=lambda point: not (point.expected and point.observed))
    return _at_block(pair, alignment, block)


def _at_block(pair: Pair, alignment: Alignment, block: Block) -> TraceDivergence:
    expected, observed = pair.calls
    at = block.expected.start, block.observed.start
    left_of = expected[at[0]] if block.expected else None
    right_of = observed[at[1]] if block.observed else None
    return _other_path(pair, alignment, at, (left_of, right_of))


def _other_path(
    pair: Pair,
    alignment: Alignment,
    at: tuple[int, int],
    sides: tuple[TracedCall | None, TracedCall | None],
) -> TraceDivergence:
    expected, observed = pair.calls
    taken = _taken_by(pair, *sides)
    return TraceDivergence(
        claim=Claim.CODE_PATH if taken is None else Claim.OUTSIDE_VALUE,
        source=taken,
        expected=sides[0],
        observed=sides[1],
        at=at,
        first_use=observed[at[1]],
        expected_calls=expected,
        observed_calls=observed,
        alignment=alignment,
        drift=pair.drift,
        rank=pair.expected.rank,
    )


def _taken_by(pair: Pair, left: TracedCall | None, right: TracedCall | None) -> TracedCall | None:
    """Return the call that took worker data of a different type or shape, else None.

    It applies only where both sides call one operator. Then the data differs, and the operator
    merely follows it.
    """
    if left is None or right is None or left.operator != right.operator:
        return None
    for before, after in zip(left.inputs, right.inputs, strict=False):
        if before.form == after.form:
            continue
        both = [
            _outside_behind(trace.calls, made)
            for trace, value in ((pair.expected, before), (pair.observed, after))
            for by in value.made_by[:1]
            if by != NOBODY and (made := _call(trace.calls, by)) is not None
        ]
        if len(both) == PAIR and all(call is not None and _arrives(call) for call in both):
            return both[-1]
    return None


def _classified(pair: Pair, alignment: Alignment, root: Root) -> TraceDivergence:
    expected, observed = pair.calls
    use, right_use = expected[root.expected], observed[root.observed]
    left: TracedCall | None = use
    right: TracedCall | None = right_use
    block, shown = (
        _block_behind(pair, alignment, root.inputs, use),
        ShownDifference(Claim.CODE_PATH),
    )
    if block is None:
        shown = _claim(pair, alignment, root, use, right_use)
    if shown.claim is Claim.MEMORY_LAYOUT:
        use, right_use, block = _layout_behind(pair, alignment, use, right_use)
        shown = (
            ShownDifference(Claim.CODE_PATH) if block else ShownDifference(shown.claim, right_use)
        )
    if block is not None:
        left = expected[block.expected.start] if block.expected else None
        right = observed[block.observed.start] if block.observed else None
    source = shown.source
    return TraceDivergence(
        claim=shown.claim,
        expected=left,
        observed=right,
        at=(root.expected, root.observed),
        expected_calls=expected,
        observed_calls=observed,
        alignment=alignment,
        drift=pair.drift,
        rank=pair.expected.rank,
        source=source,
        settings=shown.settings,
        unchecked=shown.unchecked,
        first_use=observed[root.observed],
        left_out_before=observed[block.observed.start] if block and right is None else None,
        apart=outputs_apart(expected[root.expected], observed[root.observed]),
        from_another_rank=source is not None and namespace(source) in OTHER_RANKS,
    )


def _layout_behind(
    pair: Pair, alignment: Alignment, left: TracedCall, right: TracedCall
) -> tuple[TracedCall, TracedCall, Block | None]:
    """Follow a layout difference back to the calls that made it.

    Returns those calls, and the block that only one side calls if one explains the layout.
    """
    expected, observed = pair.calls
    same = {expected[first].number: (first, second) for first, second in alignment.pairs}
    while True:
        values = zip(left.inputs, right.inputs, strict=True)
        apart = tuple(both for both in values if layouts_differ(*both))
        block = _block_behind(pair, alignment, apart, left) if apart else None
        by = next((by for value, _ in apart for by in value.made_by if by in same), NOBODY)
        # A trace is untrusted. A maker that is not an earlier call would make this loop endless.
        if block is not None or by == NOBODY or by >= left.number:
            return left, right, block
        left, right = expected[same[by][0]], observed[same[by][1]]


def _block_behind(
    pair: Pair, alignment: Alignment, inputs: Pairs, call: TracedCall
) -> Block | None:
    """Return the block of one side's calls that explains a difference, or None.

    A block explains it if it made an input of the call, or drew random numbers before the call
    drew.
    """
    expected, observed = pair.calls
    left = {by for value, _ in inputs for by in value.made_by}
    right = {by for _, value in inputs for by in value.made_by}
    for block in alignment.blocks:
        mine = [expected[place] for place in block.expected]
        theirs = [observed[place] for place in block.observed]
        made = any(inner.number in left for inner in mine) or any(
            inner.number in right for inner in theirs
        )
        # A block that draws random numbers moves the generator for every later draw.
        drew = call.random and not inputs and any(inner.random for inner in (*mine, *theirs))
        if made or drew:
            return block
    return None


def _claim(
    pair: Pair, alignment: Alignment, root: Root, left: TracedCall, right: TracedCall
) -> ShownDifference:
    """Return what a difference that enters at this call shows, and the call the value came from."""
    if left.arguments != right.arguments:
        # Two runs of one commit have the same code, so a different number comes from outside torch.
        return ShownDifference(Claim.CODE_PATH if pair.drift else Claim.OUTSIDE_VALUE)
    if _made_elsewhere(pair, alignment, root.inputs or unread(left, right)):
        return ShownDifference(Claim.OTHER_TENSORS)
    if root.inputs:
        return _of_inputs(pair.observed.calls, root.inputs, right)
    return _of_equal_inputs(pair, left, right)


def _of_equal_inputs(pair: Pair, left: TracedCall, right: TracedCall) -> ShownDifference:
    """Return the reason for a different output although no value that was read differs.

    The operator is blamed last, when everything that could be compared was equal.
    """
    others = _other_reasons(pair, left, right)
    return next(others, ShownDifference(Claim.NONDETERMINISTIC_OPERATOR))


def _other_reasons(pair: Pair, left: TracedCall, right: TracedCall) -> Iterator[ShownDifference]:
    """Yield every reason for a different output besides its operator, surest first."""
    settings = settings_apart(pair.expected, pair.observed, left, right)
    if settings:
        yield ShownDifference(Claim.SETTING, settings=settings)
    states = left.random_state, right.random_state
    # A state that was not recorded is empty and cannot be ruled out as the reason.
    if left.random and (states[0] != states[1] or not all(states)):
        yield ShownDifference(Claim.RANDOM_STATE)
    if any(layouts_differ(*values) for values in zip(left.inputs, right.inputs, strict=True)):
        yield ShownDifference(Claim.MEMORY_LAYOUT)
    if right.origin is not Origin.NONE:
        yield ShownDifference(Claim.OUTSIDE_VALUE, right)
    unknown = unread(left, right)
    if unknown:
        # The values of these inputs were not read. The call that made them may be reason enough.
        shown = _of_inputs(pair.observed.calls, unknown, right)
        if shown.source is not None and shown.claim is not Claim.BELOW_DISPATCHER:
            yield shown
        yield ShownDifference(Claim.UNPROVEN, unchecked="the values of one of them were not read")
    # What happens inside compiled code or a higher-order operator is not traced.
    if left.compiled or namespace(left) == HIGHER:
        yield ShownDifference(Claim.BELOW_DISPATCHER)
    if not (left.whole and right.whole):
        yield ShownDifference(
            Claim.UNPROVEN, unchecked="one of its arguments could not be compared"
        )
    # A thread may change a tensor while the operator reads it, so the operator is not blamed.
    if any(call.thread for trace in (pair.expected, pair.observed) for call in trace.calls):
        yield ShownDifference(
            Claim.UNPROVEN, unchecked="other threads ran operators at the same time"
        )


def settings_apart(
    expected: RankTrace, observed: RankTrace, left: TracedCall, right: TracedCall
) -> tuple[tuple[str, str, str], ...]:
    """Return torch's settings that differ at two calls, as (name, expected, observed)."""
    before, after = expected.settings_at(left.number), observed.settings_at(right.number)
    return tuple(
        (name, before[name], after[name])
        for name in sorted(before.keys() & after.keys())
        if before[name] != after[name]
    )


def _made_elsewhere(pair: Pair, alignment: Alignment, inputs: Pairs) -> bool:
    """Return whether a pair's values were made by calls that do not correspond, or in other places.

    All makers have to be known on both sides. An example is a list of rows that Python shuffles:
    each row is unchanged, but a different one is taken. Rows that one call returns differ only in
    their offset.
    """
    expected, observed = pair.calls
    same = {expected[left].number: observed[right].number for left, right in alignment.pairs}
    theirs = set(same.values())
    return any(
        {*left.made_by} <= same.keys()
        and {*right.made_by} <= theirs
        and (tuple(same[by] for by in left.made_by) != right.made_by or left.offset != right.offset)
        for left, right in inputs
    )


def _of_inputs(calls: Calls, inputs: Pairs, use: TracedCall) -> ShownDifference:
    """Return where a value came from that differs although no differing call made it."""
    makers = [
        made
        for _, value in inputs
        for by in value.made_by
        if by != NOBODY and (made := _call(calls, by)) is not None
    ]
    # Memory that a message has not filled yet looks uninitialised, so messages are checked first.
    message = next((made for made in makers if namespace(made) in OTHER_RANKS), None)
    for _, value in inputs if message is None else ():
        if value.unset_by and (bare := _call(calls, value.unset_by[0])) is not None:
            return ShownDifference(Claim.UNINITIALISED, bare)
    outside = next(filter(None, (_outside_behind(calls, made) for made in makers)), None)
    if outside is not None:
        return ShownDifference(Claim.OUTSIDE_VALUE, outside)
    conditions: tuple[Callable[[TracedCall], bool], ...] = (
        lambda call: call.thread != 0,
        lambda call: namespace(call) in OTHER_RANKS,
    )
    for of_this_kind in conditions:
        made = next(filter(of_this_kind, makers), None)
        if made is not None:
            # A receive from any rank takes the first message, so the order of arrival is proven.
            arrived = made.operator == FROM_ANY_RANK
            return ShownDifference(Claim.ARRIVAL if arrived else Claim.OUTSIDE_VALUE, made)
    if use.compiled or (makers and not is_unmade(inputs)):
        return ShownDifference(Claim.BELOW_DISPATCHER, next(iter(makers), None))
    return ShownDifference(Claim.OUTSIDE_VALUE)


def _outside_behind(calls: Calls, made: TracedCall) -> TracedCall | None:
    """Return the call that took this value from outside torch, or None.

    The search goes back through calls whose results were not read, at most `MOST_VIEWS` of them.
    """
    seen: TracedCall | None = made
    for _ in range(MOST_VIEWS):
        if seen is None or seen.origin is not Origin.NONE:
            return seen
        by = next((by for value in seen.inputs for by in value.made_by if by != NOBODY), NOBODY)
        passed_on = not any(value.digest for value in seen.outputs)
        seen = _call(calls, by) if passed_on and 0 <= by < seen.number else None
    return None


def _call(calls: Calls, number: int) -> TracedCall | None:
    # A trace is untrusted and may end at a limit, so a number may be beyond its calls.
    return calls[number] if number < len(calls) else None
