"""Decide how long a line of a history is kept, by its class, and what is left of a day's files.

A line's age is that of its day's folder. Whether a line is the newest of its gate cannot be told
from the line, so that takes a pass over all lines first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum

from gate.fleet.reading import Reading, WhyLeftOut, parsed_line
from gate.text.digests import sha256_hex
from gate.text.document import Document
from gate.verdict.history_lines import HistoryLine, RollbackLine
from gate.verdict.verdict import Outcome

AnyKept = frozenset[HistoryLine]


class LineClass(StrEnum):
    """The class of a line, which decides how long it is kept."""

    NEWEST = "newest"
    BASELINE = "baseline"
    SEALED = "sealed"
    OTHER = "other"
    FOREIGN = "foreign-schema"


class FileRest(Document):
    """The rows that stay in a file that loses lines, as numbers from 0.

    `sha256` is the digest of the file that was read, so that a changed file is not rewritten.
    """

    name: str
    sha256: str
    kept: tuple[int, ...]


class DayRest(Document):
    """A day's files that lose lines, and the number of kept and dropped lines of each class."""

    files: tuple[FileRest, ...]
    kept: dict[LineClass, int]
    dropped: dict[LineClass, int]


class NewestLines(Document):
    """The newest verdict and the newest sealed pass of each gate."""

    lines: tuple[HistoryLine, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """How many days lines are kept: `sealed_days` for sealed passes and rollbacks, else `days`.

    Some lines are always kept: the newest verdict and the newest sealed pass of each gate, sealed
    passes that changed a baseline, and lines of another schema, which another version may need.
    """

    today: date
    days: int
    sealed_days: int

    def first_day(self, line_class: LineClass) -> str:
        """Return the oldest day whose lines of this class stay, or empty text for no limit."""
        if line_class is LineClass.OTHER:
            return (self.today - timedelta(days=self.days)).isoformat()
        if line_class is LineClass.SEALED:
            return (self.today - timedelta(days=self.sealed_days)).isoformat()
        return ""


def newest_lines_of_gates(reading: Reading) -> NewestLines:
    """Return the lines of each gate that are kept at any age; lines of the future do not count."""
    last: dict[tuple[str, str], HistoryLine] = {}
    good: dict[tuple[str, str], HistoryLine] = {}
    for moment in reading.lines():
        line = moment.line
        if isinstance(line, HistoryLine):
            last[line.repository, line.gate_id] = line
            if line.passes and line.sealed:
                good[line.repository, line.gate_id] = line
    return NewestLines(lines=(*last.values(), *good.values()))


def class_of_line(row: bytes, newest: AnyKept) -> LineClass:
    """Return the class of a line, according to its own content."""
    line = parsed_line(row)
    if isinstance(line, WhyLeftOut):
        return LineClass.FOREIGN if line is WhyLeftOut.FOREIGN else LineClass.OTHER
    if isinstance(line, RollbackLine):
        return LineClass.SEALED
    if line in newest:
        return LineClass.NEWEST
    if not (line.passes and line.sealed):
        return LineClass.OTHER
    changed = line.outcome is Outcome.BASELINE_CHANGE
    return LineClass.BASELINE if changed else LineClass.SEALED


def rest_of_day(
    files: Iterable[tuple[str, bytes]], day: str, retention: Retention, newest: AnyKept
) -> DayRest:
    """Decide which lines of a day's files stay; `files` are names with their content."""
    rests, kept, dropped = list[FileRest](), Counter[LineClass](), Counter[LineClass]()
    first_days = {kind: retention.first_day(kind) for kind in LineClass}
    for name, data in files:
        rows, stay = rows_of(data), list[int]()
        for number, row in enumerate(rows):
            line_class = class_of_line(row, newest)
            # ISO dates are ordered like text, and the empty text for "no limit" comes before all of
            # them.
            if day >= first_days[line_class]:
                stay.append(number)
                kept[line_class] += 1
            else:
                dropped[line_class] += 1
        if len(stay) < len(rows):
            rests.append(FileRest(name=name, sha256=sha256_hex(data), kept=tuple(stay)))
    return DayRest(files=tuple(rests), kept=dict(kept), dropped=dict(dropped))


def rows_of(data: bytes) -> list[bytes]:
    """Return the lines of a file."""
    return [row for row in data.split(b"\n") if row]
