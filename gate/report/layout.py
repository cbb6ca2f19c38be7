"""The parts of a report, before they become Markdown, HTML or lines for a terminal.

All text in these records is raw. Each presenter escapes all of it for its own format, so no text
can be shown unescaped by oversight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gate.verdict.verdict import NextStep


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How many rows of each kind a report shows before it counts the rest."""

    deltas: int
    rows: int


@dataclass(frozen=True, slots=True)
class Cell:
    """A table's cell; `code` marks names and digests, which are shown in a code font."""

    text: str
    code: bool = False


Row = tuple[Cell, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows under headings; `total` counts all rows, including those not shown.

    `right` lists the right-aligned columns, which have numbers.
    """

    headings: tuple[str, ...]
    rows: tuple[Row, ...]
    total: int
    right: tuple[int, ...] = ()

    @property
    def omitted(self) -> int:
        """How many rows are not shown."""
        return self.total - len(self.rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A titled table; `leading` sections are shown even if there is little room.

    A section with an `anchor` explains the outcome, so a page shows it first, under that name.
    `in_comment` is false for a section that the comment leaves out, because a row of its small
    table says enough. `printed` means that each row is a line of program output, shown with its
    blanks.
    """

    title: str
    table: Table
    leading: bool = False
    anchor: str = ""
    in_comment: bool = True
    printed: bool = False


def cells_renamed(section: Section, rename: Callable[[str], str]) -> Section:
    """Return the section with `rename` applied to each cell in the code font."""
    rows = tuple(
        tuple(replace(cell, text=rename(cell.text)) if cell.code else cell for cell in row)
        for row in section.table.rows
    )
    return replace(section, table=replace(section.table, rows=rows))


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """A finding that must be seen: its code, and a text that says what is wrong and what to do."""

    code: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownLines:
    """Part of the diff, at most six lines, with a caption.

    Each line begins with `+`, `-`, or, for a place, `@@`.
    """

    caption: str
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Brief:
    """The first answers: what happened and its known cause; whether this change caused it.

    `more` is further evidence about the cause: traces, and settings that were tried. `names_line`
    is true if the cause is a line that is known to differ.
    """

    answer: str
    cause: str
    more: str
    this_change: str
    change: ShownLines | None = None
    names_line: bool = False

    @property
    def happened(self) -> str:
        """Everything that is known about what happened, in one paragraph."""
        return " ".join(filter(None, (self.answer, self.cause, self.more)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The whole report: what is seen at once, then the details in order of interest.

    `deciding` has the rows of `overview` that decide, at most four. `drawing` are lines of block
    characters. `time` says in one line where the call's time went, and is empty if none was taken.
    """

    icon: str
    headline: str
    brief: Brief
    alerts: tuple[Alert, ...]
    alerts_total: int
    overview: Table
    deciding: Table
    drawing: tuple[str, ...]
    next_steps: tuple[NextStep, ...]
    verify_command: str
    facts: tuple[Row, ...]
    time: str
    run_url: str
    sections: tuple[Section, ...]


def table_of(headings: tuple[str, ...], rows: Iterable[Row], limit: int, *right: int) -> Table:
    """Return a table of the first `limit` rows that also knows the total number."""
    # All rows are counted before the cut, because a report must say how much it leaves out.
    every = tuple(rows)
    return Table(headings=headings, rows=every[:limit], total=len(every), right=right)


def facts_table(facts: Iterable[tuple[str, Cell]], limit: int) -> Table:
    """Return a table of names and values, leaving out names without a value."""
    rows = ((Cell(name), value) for name, value in facts if value.text)
    return table_of(("What", "Value"), rows, limit)


# the failure mode's label among the facts, which a comment shows too
FAILURE_MODE = "failure mode"
OUTCOME = "outcome"
BLOCKS = "▁▂▃▄▅▆▇█"
GAP = "✕"
WIDTH = 40


def sparkline(values: Sequence[float | None], width: int = WIDTH) -> str:
    """Draw one block character for each value, or each mean of neighbours above `width` values.

    A value that is missing or not finite is drawn as a cross.
    """
    return sparklines((values,), width)[0]


def sparklines(several: Sequence[Sequence[float | None]], width: int = WIDTH) -> tuple[str, ...]:
    """Draw a line for each series, all on one scale."""
    shown = [_buckets([_finite(value) for value in values], width) for values in several]
    numbers = [value for line in shown for value in line if value is not None]
    if not numbers:
        return tuple(GAP * len(line) for line in shown)
    low, high = min(numbers), max(numbers)
    return tuple(
        "".join(GAP if value is None else _block(value, low, high) for value in line)
        for line in shown
    )


def bucket_of(index: int, count: int, width: int = WIDTH) -> int:
    """Return the index of the character that shows the value at `index`."""
    if count <= width:
        return index
    return next(place for place in reversed(range(width)) if place * count // width <= index)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _buckets(values: Sequence[float | None], width: int) -> list[float | None]:
    if len(values) <= width:
        return list(values)
    bounds = [index * len(values) // width for index in range(width + 1)]
    return [_mean(values[bounds[i] : bounds[i + 1]]) for i in range(width)]


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None if a value is missing: a NaN must not vanish among neighbours."""
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values):
        return None
    # Divide before adding: the sum of large numbers would overflow.
    return math.fsum(number / len(numbers) for number in numbers)


def _block(value: float, low: float, high: float) -> str:
    return BLOCKS[min(int(position(value, low, high) * len(BLOCKS)), len(BLOCKS) - 1)]


def position(value: float, low: float, high: float) -> float:
    """Return a value's relative position from 0 to 1; 0.5 if the range is empty."""
    span = high - low
    if math.isinf(span):
        return position(value / 2, low / 2, high / 2)
    # Not halved unless needed, because the smallest floats become zero when halved.
    return (value - low) / span if span else 0.5
