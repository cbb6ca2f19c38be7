"""How long a line of a history is kept, by its class: what is left of one file of one day.

A line's age is that of its day's folder. No line says by itself that it is the newest of its gate:
that takes a pass over all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum

from gate.fleet.reading import LeftOut, Reading, parsed_line
from gate.text.digests import sha256_hex
from gate.text.document import Document
from gate.verdict.history import HistoryLine, RollbackLine
from gate.verdict.verdict import Outcome

AnyKept = frozenset[HistoryLine]


class LineClass(StrEnum):
    """The kind of line, for a look back."""

    NEWEST = "newest"
    BASELINE = "baseline"
    SEALED = "sealed"
    OTHER = "other"
    FOREIGN = "foreign-schema"


class FileRest(Document):
    """What stays of a file that loses lines: the numbers of its rows, from 0.

    `sha256` is the digest of the file that was looked at.
    """

    name: str
    sha256: str
    kept: tuple[int, ...]


class DayRest(Document):
    """The files of a day that lose lines, and how many lines of each class there were."""

    files: tuple[FileRest, ...]
    kept: dict[LineClass, int]
    dropped: dict[LineClass, int]


class NewestLines(Document):
    """The newest verdict and the newest sealed pass of each gate."""

    lines: tuple[HistoryLine, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """Days for which sealed passes and rollbacks are kept, and all else; what is neither stays.

    The newest verdict and the newest sealed pass of each gate are always kept, and so are sealed
    passes that changed a baseline and lines of another schema: another version may need them.
    """

    today: date
    days: int
    sealed_days: int

    def first_day(self, line_class: LineClass) -> str:
        """The oldest day whose lines of this class stay, as folders are called."""
        if line_class is LineClass.OTHER:
            return (self.today - timedelta(days=self.days)).isoformat()
        if line_class is LineClass.SEALED:
            return (self.today - timedelta(days=self.sealed_days)).isoformat()
        return ""


def newest_lines_of_gates(reading: Reading) -> NewestLines:
    """What is kept of each gate however old it is; a line of the future is not among them."""
    last: dict[tuple[str, str], HistoryLine] = {}
    good: dict[tuple[str, str], HistoryLine] = {}
    for moment in reading.lines():
        line = moment.line
        if isinstance(line, HistoryLine):
            last[line.repository, line.gate_id] = line
            if line.passes and line.sealed:
                good[line.repository, line.gate_id] = line
    return NewestLines(lines=(*last.values(), *good.values()))


def class_of(row: bytes, newest: AnyKept) -> LineClass:
    """The class of a line, by what it says of itself."""
    line = parsed_line(row)
    if isinstance(line, LeftOut):
        return LineClass.FOREIGN if line is LeftOut.FOREIGN else LineClass.OTHER
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
    """What stays of the files of a day, each a name and its content."""
    rests, kept, dropped = list[FileRest](), Counter[LineClass](), Counter[LineClass]()
    first_days = {kind: retention.first_day(kind) for kind in LineClass}
    for name, data in files:
        rows, stay = rows_of(data), list[int]()
        for number, row in enumerate(rows):
            line_class = class_of(row, newest)
            if day >= first_days[line_class]:
                stay.append(number)
                kept[line_class] += 1
            else:
                dropped[line_class] += 1
        if len(stay) < len(rows):
            rests.append(FileRest(name=name, sha256=sha256_hex(data), kept=tuple(stay)))
    return DayRest(files=tuple(rests), kept=dict(kept), dropped=dict(dropped))


def rows_of(data: bytes) -> list[bytes]:
    """The lines of a file."""
    return [row for row in data.split(b"\n") if row]
