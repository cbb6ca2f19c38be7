"""The difference of two states as sections of a report and as a document; quick to import."""

from __future__ import annotations

import math
from typing import Final

from gate.comparison.state_difference import (
    DIFFERENCE_SCHEMA,
    ComparedState,
    LeafDifference,
    NumberDifference,
    StateDifference,
)
from gate.report.escape import NOTHING
from gate.report.layout import Cell, Row, Section, table_of
from gate.text.phrases import count

SHORT_HEADINGS: Final = ("Tensor", "Differ", "Max abs", "Rel L2", "ULP 50 %", "ULP max")
HEADINGS: Final = (
    "Tensor", "Type", "Elements", "Differ", "First at", "Max absolute", "Max relative",
    "Relative L2", "ULP 50 %", "ULP 90 %", "ULP 99 %", "ULP max", "NaN", "Infinite",
)  # fmt: skip
MOST_ULP: Final = 1_000_000
FAR_APART: Final = "far apart"
ULP_KEYS: Final = {0.5: "ulp_50", 0.9: "ulp_90", 0.99: "ulp_99", 1.0: "ulp_max"}


def difference_headline(difference: StateDifference) -> str:
    """Say how many leaves differ, or that none does."""
    tensors = count(difference.equal_tensors, "tensor")
    equal = f"{tensors} and {count(difference.equal_values, 'value')}"
    if difference.equal:
        return f"Equal bit for bit: {equal}"
    differing = len(difference.differences)
    return f"{differing:,} {'leaf differs' if differing == 1 else 'leaves differ'}, equal: {equal}"


def difference_facts(difference: StateDifference) -> list[str]:
    """Return sentences about what was compared, what was left out, and the readers' notes."""
    lines = [
        f"{side}: {state.shown} ({state.format})"
        for side, state in (("A", difference.left), ("B", difference.right))
    ]
    lines += [
        f"Left out: {left_out.pattern} ({left_out.reason}), {left_out.leaves[0]:,} in A and "
        f"{left_out.leaves[1]:,} in B"
        for left_out in difference.left_out
    ]
    left, right = difference.left.notes, difference.right.notes
    lines += [f"A{' and B' if note in right else ''}: {note}" for note in left]
    lines += [f"B: {note}" for note in right if note not in left]
    return lines


def sections(difference: StateDifference, limit: int, *, wide: bool) -> tuple[Section, ...]:
    """Return leaves without numbers, then leaves with numbers, the worst first in both tables.

    `wide` includes every figure.
    """
    others = [leaf for leaf in difference.differences if leaf.numbers is None]
    numbers = [leaf for leaf in difference.differences if leaf.numbers is not None]
    parts = []
    if others:
        table = table_of(("Leaf", "How", "A", "B"), map(_other_row, others), limit)
        title = f"Values and structure that differ ({table.total:,})"
        parts.append(Section(title=title, table=table, leading=True))
    if numbers:
        headings = HEADINGS if wide else SHORT_HEADINGS
        right = range(2 if wide else 1, len(headings))
        rows = (_wide_row(leaf) if wide else _short_row(leaf) for leaf in numbers)
        table = table_of(headings, rows, limit, *right)
        title = f"Tensors whose numbers differ ({table.total:,}), worst first"
        parts.append(Section(title=title, table=table, leading=True))
    return tuple(parts)


def _other_row(leaf: LeafDifference) -> Row:
    return (
        Cell(leaf.shown, code=True),
        Cell(leaf.change.value),
        Cell(leaf.left or NOTHING, code=True),
        Cell(leaf.right or NOTHING, code=True),
    )


def _short_row(leaf: LeafDifference) -> Row:
    numbers = _numbers(leaf)
    cells = (
        f"{numbers.differing:,}",
        _size(numbers.max_absolute),
        _odd_words(numbers) or _size(numbers.relative_l2),
        _distance(numbers, 0),
        _distance(numbers, -1),
    )
    return (Cell(f"{leaf.shown} {leaf.left}", code=True), *map(Cell, cells))


def _wide_row(leaf: LeafDifference) -> Row:
    numbers = _numbers(leaf)
    cells = (
        f"{numbers.elements:,}",
        f"{numbers.differing:,}",
        str(list(numbers.first_index)),
        _size(numbers.max_absolute),
        _size(numbers.max_relative),
        _size(numbers.relative_l2),
        *(_distance(numbers, place) for place in range(4)),
        _sides(numbers.not_numbers),
        _sides(numbers.infinities),
    )
    return (Cell(leaf.shown, code=True), Cell(leaf.left, code=True), *map(Cell, cells))


def _numbers(leaf: LeafDifference) -> NumberDifference:
    if leaf.numbers is None:
        message = f"{leaf.path} has no numbers"
        raise ValueError(message)
    return leaf.numbers


def _size(number: float | None) -> str:
    if number is None or not math.isfinite(number):
        return NOTHING
    return f"{number:,}" if isinstance(number, int) else f"{number:.3g}"


def _distance(numbers: NumberDifference, place: int) -> str:
    return ulp_words(numbers.ulp[place].distance if numbers.ulp else None)


def ulp_words(distance: int | None) -> str:
    """Return a number of units in the last place, or `far apart` above a million."""
    if distance is None:
        return NOTHING
    return f"{distance:,}" if distance <= MOST_ULP else FAR_APART


def _sides(counts: tuple[int, int]) -> str:
    return f"{counts[0]:,} / {counts[1]:,}" if any(counts) else "0"


def _odd_words(numbers: NumberDifference) -> str:
    """Describe moved NaN and infinities, for which a narrow table has no column."""
    if not numbers.finiteness_moved:
        return ""
    return f"NaN {_sides(numbers.not_numbers)}, inf {_sides(numbers.infinities)}"


def difference_document(difference: StateDifference) -> dict[str, object]:
    """Return the whole difference as a JSON document; a figure that does not exist is null."""
    return {
        "schema_version": DIFFERENCE_SCHEMA,
        "equal": difference.equal,
        "a": _state_document(difference.left),
        "b": _state_document(difference.right),
        "equal_tensors": difference.equal_tensors,
        "equal_values": difference.equal_values,
        "differences": [_leaf_document(leaf) for leaf in difference.differences],
        "left_out": [
            {"pattern": exclusion.pattern, "reason": exclusion.reason, "leaves": exclusion.leaves}
            for exclusion in difference.left_out
        ],
    }


def _state_document(state: ComparedState) -> dict[str, object]:
    return {"path": state.shown, "format": state.format, "notes": state.notes}


def _leaf_document(leaf: LeafDifference) -> dict[str, object]:
    document: dict[str, object] = {
        "path": leaf.path,
        "part": leaf.part,
        "parameter": leaf.parameter or None,
        "change": leaf.change.value,
        "a": leaf.left or None,
        "b": leaf.right or None,
    }
    numbers = leaf.numbers
    if numbers is not None:
        document |= {
            "elements": numbers.elements,
            "differing": numbers.differing,
            "first_index": numbers.first_index,
            "max_absolute": numbers.max_absolute,
            "max_relative": numbers.max_relative,
            "relative_l2": numbers.relative_l2,
            **{ULP_KEYS[leaf.share]: leaf.distance for leaf in numbers.ulp},
            "not_numbers": numbers.not_numbers,
            "infinities": numbers.infinities,
        }
    return document
