"""What a report consists of, before it becomes Markdown, HTML or a terminal's lines.

All text in these records is raw: each presenter escapes all of it for its own place, so nothing
can be shown unescaped by having been forgotten.
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
    """One cell; `code` marks names and digests, shown in the code face."""

    text: str
    code: bool = False


Row = tuple[Cell, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows under headings; `total` counts the rows that there are, shown or not.

    `right` names the columns of numbers.
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
    """A titled table of the details; `leading` marks those shown where room is scarce.

    One with an `anchor` explains the outcome: a page shows it before all others, under that name.
    The comment leaves out those that are not `in_comment`: a row of its small table says enough.
    `printed`: each row is a line as a program printed it, with its blanks.
    """

    title: str
    table: Table
    leading: bool = False
    anchor: str = ""
    in_comment: bool = True
    printed: bool = False


def cells_renamed(section: Section, rename: Callable[[str], str]) -> Section:
    """The section with each name in the code face passed through `rename`."""
    rows = tuple(
        tuple(replace(cell, text=rename(cell.text)) if cell.code else cell for cell in row)
        for row in section.table.rows
    )
    return replace(section, table=replace(section.table, rows=rows))


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """A finding that must be seen: its code, what is the matter and what to do."""

    code: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownLines:
    """A part of the diff that stands first, at most six lines: what it is, and its lines.

    Each line begins with its sign, and a place with `@@`.
    """

    caption: str
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Brief:
    """What stands first: what happened, its cause where one is known; is it this change.

    `more` is what else is known of the cause: traces, and settings that were tried. `names_line`:
    the cause is a line that is known to differ.
    """

    answer: str
    cause: str
    more: str
    this_change: str
    change: ShownLines | None = None
    names_line: bool = False

    @property
    def happened(self) -> str:
        """All that is known of what happened, in one paragraph."""
        return " ".join(filter(None, (self.answer, self.cause, self.more)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The whole report: what is seen at once, then the details in order of interest.

    `deciding` are the rows of `overview` that decide, four at most. `drawing` are lines of blocks.
    `time` says in a line where the call's time went, empty where none was taken.
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
    """A table of the first `limit` rows that knows how many there were."""
    # counted before it is cut: a report must say how much it does not show
    every = tuple(rows)
    return Table(headings=headings, rows=every[:limit], total=len(every), right=right)


def facts_table(facts: Iterable[tuple[str, Cell]], limit: int) -> Table:
    """A table of names and values, without those that have no value."""
    rows = ((Cell(name), value) for name, value in facts if value.text)
    return table_of(("What", "Value"), rows, limit)


# the fact that names it, which a comment shows too
FAILURE_MODE = "failure mode"
OUTCOME = "outcome"
BLOCKS = "▁▂▃▄▅▆▇█"
GAP = "✕"
WIDTH = 40


def sparkline(values: Sequence[float | None], width: int = WIDTH) -> str:
    """One block character a value, or a mean of neighbours when there are more than `width`.

    A value that is missing or not finite shows as a cross.
    """
    return sparklines((values,), width)[0]


def sparklines(several: Sequence[Sequence[float | None]], width: int = WIDTH) -> tuple[str, ...]:
    """A line for each series, all on one scale."""
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
    """Which character of a line of `count` values shows the one at `index`."""
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
    """The mean, or None when any value is missing: a NaN must not vanish among its neighbours."""
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values):
        return None
    # divided first: a sum of large numbers would overflow
    return math.fsum(number / len(numbers) for number in numbers)


def _block(value: float, low: float, high: float) -> str:
    return BLOCKS[min(int(position(value, low, high) * len(BLOCKS)), len(BLOCKS) - 1)]


def position(value: float, low: float, high: float) -> float:
    """Where a value lies between two finite ones, from 0 to 1; in the middle of an empty range."""
    span = high - low
    if math.isinf(span):
        return position(value / 2, low / 2, high / 2)
    # not halved without need: the smallest numbers have no half
    return (value - low) / span if span else 0.5
