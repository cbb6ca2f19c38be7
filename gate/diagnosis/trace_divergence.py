"""The point at which two traces diverge, and the facts about it; `trace_words.py` words them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from gate.diagnosis.trace_alignment import Alignment, Calls, values_differ
from gate.evidence.trace import (
    MAX_NUMBER_CHARACTERS,
    MAX_NUMBERS,
    ChangedNumber,
    Claim,
    Origin,
    TracedCall,
    TraceRow,
)

ROWS_BEFORE: Final = 4
ROWS_AFTER: Final = 3
# The most characters of a call that a row shows.
SHOWN: Final = 200
TAKES_FROM_OUTSIDE: Final = "aten::lift_fresh"
NEXT_ARGUMENT: Final = re.compile(r", (?=[A-Za-z_]\w*=)")
REAL: Final = re.compile(r"\w+=-?(\d+\.\d*(e[-+]?\d+)?|\d+e[-+]?\d+)")
SIZE: Final = re.compile(r"\d+", re.ASCII)
WHOLE: Final = re.compile(r"\w+=-?\d+")
CAST: Final = "aten::_to_copy"
DTYPE: Final = re.compile(r"\bdtype=torch\.(\w+)")
REAL_TYPES: Final = ("float", "bfloat", "half", "double")
# For these claims the report names the call that made the value, not the call that uses it.
OF_THEIR_SOURCE: Final = (
    *(Claim.UNINITIALISED, Claim.OUTSIDE_VALUE, Claim.MEMORY_LAYOUT, Claim.ARRIVAL),
    Claim.COLLECTIVE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceDivergence:
    """Where two traces diverge; `at` are the places in both sequences of calls.

    `expected` or `observed` is None where only the other run makes the call. `first_use` is the
    observed run's call whose output differs first. `source` is the call that the value came from.
    `left_out_before` is the observed run's call before which only the other run makes `expected`.
    `apart` is the largest difference of sampled outputs, absolute and relative.
    """

    claim: Claim
    expected: TracedCall | None
    observed: TracedCall | None
    first_use: TracedCall
    at: tuple[int, int]
    expected_calls: Calls
    observed_calls: Calls
    alignment: Alignment
    drift: bool
    rank: int
    source: TracedCall | None = None
    left_out_before: TracedCall | None = None
    apart: tuple[float, float] | None = None
    from_another_rank: bool = False
    settings: tuple[tuple[str, str, str], ...] = ()
    unchecked: str = ""

    @property
    def call(self) -> TracedCall:
        """The call that the report names."""
        if self.claim in OF_THEIR_SOURCE and self.source is not None:
            return self.source
        return self.observed or self.expected or self.first_use


def is_given(point: TraceDivergence) -> bool:
    """Return whether a call gets a different number, or a value whose maker no call shows."""
    if point.claim is Claim.CODE_PATH:
        return bool(changed_arguments(point))
    known = point.source is not None and point.source.origin is not Origin.STORAGE
    return point.claim is Claim.OUTSIDE_VALUE and not known


def draws_in_line(calls: Calls, first: TracedCall | None) -> bool:
    """Return whether a run draws random numbers in the source line and module of the call `first`.

    Only the uninterrupted sequence of calls from that line and module counts.
    """
    if first is None:
        return False
    begin = next((place for place, call in enumerate(calls) if call is first), len(calls))
    here = first.file, first.line, first.module
    own = takewhile(lambda call: (call.file, call.line, call.module) == here, calls[begin:])
    return any(call.random for call in own)


def forward_place(call: TracedCall) -> str:
    """Return the forward pass's `file:line` that a call of the backward pass belongs to, or ""."""
    return f"{call.forward_file}:{call.forward_line}" if call.forward_file else ""


def only_uses(point: TraceDivergence) -> bool:
    """Return whether what differs was set or made before the line of the named call."""
    if point.claim is Claim.CODE_PATH:
        return point.call.by_module
    taken = point.source is not None or point.call.operator == TAKES_FROM_OUTSIDE
    return point.claim is Claim.OUTSIDE_VALUE and not taken and not changed_arguments(point)


def changed_arguments(point: TraceDivergence) -> str:
    """Return `p=0.8 instead of p=0.9` for two calls of one operator, "" for equal arguments."""
    new, gone = arguments_apart(point)
    if not gone and not new:
        return ""
    return f"{', '.join(new) or 'nothing'} instead of {', '.join(gone) or 'nothing'}"


def real_numbers_apart(point: TraceDivergence) -> bool:
    """Return whether the arguments differ in real numbers only.

    A real number, unlike an index or a size, chooses and orders nothing.
    """
    sides = arguments_apart(point)
    # 10 is a real number if the other call is given 9.9
    names = {word.partition("=")[0] for side in sides for word in side if REAL.fullmatch(word)}
    return any(sides) and all(
        REAL.fullmatch(word) or (WHOLE.fullmatch(word) and word.partition("=")[0] in names)
        for side in sides
        for word in side
    )


def changed_numbers(point: TraceDivergence) -> tuple[ChangedNumber, ...]:
    """Return the arguments of both calls that differ, if only real numbers or a number type differ.

    With equal arguments, it is the one size by which the shapes of what they take differ. At most
    `MAX_NUMBERS`, each of at most `MAX_NUMBER_CHARACTERS`; () otherwise.
    """
    short = [pair for pair in _pairs(point) if max(map(len, pair)) <= MAX_NUMBER_CHARACTERS]
    return tuple(ChangedNumber(before=old, after=now) for old, now in short[:MAX_NUMBERS])


def _pairs(point: TraceDivergence) -> list[tuple[str, str]]:
    """Return the old and new numbers as the traces wrote them, of any length."""
    sides = arguments_apart(point)
    if not any(sides):
        return _sizes_apart(point)
    after, before = (DTYPE.fullmatch(", ".join(words)) for words in sides)
    if after and before:
        return [(before[1], after[1])]
    if not real_numbers_apart(point):
        return []
    new, gone = (dict(word.split("=") for word in words) for words in sides)
    return [(gone[name], new[name]) for name in new if name in gone]


def _sizes_apart(point: TraceDivergence) -> list[tuple[str, str]]:
    left, right = point.expected, point.observed
    if left is None or right is None or left.operator != right.operator:
        return []
    apart: set[tuple[str, str]] = set()
    for before, after in zip(left.inputs, right.inputs, strict=False):
        old, new = (SIZE.findall(value.form.partition(" (")[2]) for value in (before, after))
        if len(old) != len(new):
            return []
        apart |= {
            (first, second) for first, second in zip(old, new, strict=True) if first != second
        }
    return list(apart) if len(apart) == 1 else []


def precision_words(point: TraceDivergence) -> str:
    """Return `bfloat16 instead of float32` if the sides compute in different number types.

    "" otherwise.
    """
    left, right = point.expected, point.observed
    if point.claim is not Claim.CODE_PATH:
        return ""
    # One operator on both sides: compare the number types of its calls.
    if left is not None and right is not None and left.operator == right.operator:
        before, after = (_number_type(call) for call in (left, right))
    else:
        # Only one side makes this cast.
        casts = [call for call in (left, right) if call is not None and call.operator == CAST]
        if len(casts) != 1 or not casts[0].inputs or _only_moved(point, casts[0]):
            return ""
        before, after = _form_type(casts[0].inputs[0].form), _number_type(casts[0])
        if casts[0] is left:
            before, after = after, before
    # Integers and booleans are no precision, so both sides have to be real numbers.
    real = before.startswith(REAL_TYPES) and after.startswith(REAL_TYPES)
    return f"{after} instead of {before}" if real and before != after else ""


def _only_moved(point: TraceDivergence, cast: TracedCall) -> bool:
    """Return whether both sides make such a cast equally often, only in a different order."""
    left, right = (
        sum(
            (call.operator, call.arguments) == (cast.operator, cast.arguments)
            and [value.form for value in call.inputs] == [value.form for value in cast.inputs]
            for call in calls
        )
        for calls in (point.expected_calls, point.observed_calls)
    )
    return left == right


def _number_type(call: TracedCall) -> str:
    given = DTYPE.search(call.arguments)
    if given is not None:
        return given[1]
    return _form_type(call.inputs[0].form) if call.inputs else ""


def _form_type(form: str) -> str:
    return form.partition(" (")[0].rpartition(" ")[2]


def arguments_apart(point: TraceDivergence) -> tuple[list[str], list[str]]:
    """Return the arguments that only the observed call has, and those only the expected has."""
    left, right = point.expected, point.observed
    if left is None or right is None or left.operator != right.operator:
        return [], []
    before, after = (NEXT_ARGUMENT.split(call.arguments) for call in (left, right))
    return (
        [word for word in after if word and word not in before],
        [word for word in before if word and word not in after],
    )


def rows_around(point: TraceDivergence) -> Iterator[TraceRow]:
    """Yield rows of both traces around the point: paired calls, then unpaired ones side by side."""
    pairs = point.alignment.pairs
    place = next((index for index, pair in enumerate(pairs) if pair == point.at), len(pairs))
    for first, second in pairs[max(0, place - ROWS_BEFORE) : place + 1 + ROWS_AFTER]:
        left, right = point.expected_calls[first], point.observed_calls[second]
        yield _row(left, right, here=(first, second) == point.at)
    # The point is not a pair: show the next calls of both traces side by side.
    if place == len(pairs):
        for step in range(1 + ROWS_AFTER):
            left_call = _at(point.expected_calls, point.at[0] + step)
            right_call = _at(point.observed_calls, point.at[1] + step)
            if left_call or right_call:
                yield _row(left_call, right_call, here=step == 0)


def _at(calls: Calls, place: int) -> TracedCall | None:
    return calls[place] if place < len(calls) else None


def _row(left: TracedCall | None, right: TracedCall | None, *, here: bool) -> TraceRow:
    shown = right or left
    return TraceRow(
        expected=_cell(left),
        observed=_cell(right),
        place=(f"{shown.file}:{shown.line}" if shown.file else forward_place(shown))
        if shown
        else "",
        state=_state(left, right),
        here=here,
    )


def _cell(call: TracedCall | None) -> str:
    if call is None:
        return ""
    words = f"({call.arguments})" if call.arguments else ""
    return f"{call.number} {call.operator}{words}"[:SHOWN]


def _state(left: TracedCall | None, right: TracedCall | None) -> str:
    if left is None or right is None or left.operator != right.operator:
        return "another call"
    if any(values_differ(*pair) for pair in zip(left.outputs, right.outputs, strict=False)):
        inputs = zip(left.inputs, right.inputs, strict=False)
        same = not any(values_differ(*pair) for pair in inputs)
        return "output differs" if same else "inputs and output differ"
    return "equal"
