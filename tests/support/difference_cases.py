"""Checkpoints that differ, for the page of `repro-gate diff`."""

from __future__ import annotations

from gate.comparison.state_difference import (
    ComparedState,
    LeafChange,
    LeafDifference,
    NumberDifference,
    StateDifference,
    UlpShare,
)

NOTE = "taken from a package whose seal was not checked"
SHARES = (0.5, 0.9, 0.99, 1.0)
NAME = "/optimizer/0/state/{}/momentum_buffer"


def difference_of(leaves: int, *, left: tuple[str, ...], right: tuple[str, ...]) -> StateDifference:
    """Return a difference in `leaves` tensors of an optimizer, and in one plain value.

    `left` and `right` are the notes of the two states.
    """
    numbers = NumberDifference(
        elements=2_048, differing=1_659, first_index=(0, 1), max_absolute=0.0698, max_relative=2.0,
        relative_l2=0.333, ulp=tuple(UlpShare(share=part, distance=7**18) for part in SHARES),
        not_numbers=(0, 0), infinities=(0, 0),
    )  # fmt: skip
    tensors = tuple(
        LeafDifference(
            path=NAME.format(number), part="optimizer", change=LeafChange.CHANGED,
            left="F32[32, 64]", right="F32[32, 64]", relative=0.333, numbers=numbers,
        )
        for number in range(leaves)
    )  # fmt: skip
    value = LeafDifference(
        path="/epoch", part="other", change=LeafChange.MISSING, left="int 7", right="", relative=1.0
    )
    sides = (
        ComparedState(shown=name, format="package of repro-gate", notes=notes)
        for name, notes in (("old/package.tar", left), ("new/package.tar", right))
    )
    first, second = sides
    return StateDifference(
        left=first, right=second, equal_tensors=6, equal_values=0, differences=(value, *tensors),
        left_out=(),
    )  # fmt: skip
