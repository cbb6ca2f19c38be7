"""Read the lines of a history in the order of time, as untrusted input."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from pydantic import TypeAdapter, ValidationError

from gate.errors import DocumentError, StorageError
from gate.fleet.stores import BATCH, FolderStore, by_day
from gate.text.documents import read_document
from gate.text.strict_json import outline_of_json
from gate.verdict.history_lines import (
    HISTORY_SCHEMA,
    MAX_HISTORY_LINE_BYTES,
    AnyLine,
    HistoryLine,
    RollbackLine,
)

# tolerance for the clocks of different machines
AHEAD: Final = timedelta(hours=1)
DAY_SECONDS: Final = 86400
SOURCE: Final = "a line of the history"
_LINE: Final[TypeAdapter[HistoryLine | RollbackLine]] = TypeAdapter(AnyLine)


class WhyLeftOut(StrEnum):
    """Why a line does not count."""

    BROKEN = "broken"
    FOREIGN = "foreign-schema"
    TOO_LONG = "too-long"
    NO_FILE = "unreadable-file"
    FUTURE = "future"
    OTHER_DAY = "other-day"


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """A line with its time, in seconds since 1970."""

    seconds: float
    line: HistoryLine | RollbackLine = field(compare=False)


@dataclass(slots=True)
class Reading:
    """A pass over a folder of lines, from a moment on; `left_out` is filled during the pass.

    In memory are only the current line of each open file, and 8 bytes for each line of one day.
    """

    folder: FolderStore
    since: datetime
    now: datetime
    left_out: Counter[WhyLeftOut] = field(default_factory=Counter)

    def left_out_by_reason(self) -> dict[str, int]:
        """Return the numbers of lines that were left out so far, by reason."""
        return {why.value: self.left_out[why] for why in WhyLeftOut if self.left_out[why]}

    def lines(self) -> Iterator[Moment]:
        """Yield every line once, oldest first as far as each day's files are sorted."""
        first = self.since.astimezone(UTC).date()
        if strays := self.folder.strays(first):
            self.left_out[WhyLeftOut.NO_FILE] += strays
        for day, names in by_day(self.folder.names(first)):
            seen, of_day = set[int](), _seconds_of(day)
            batches = [name for name in names if name[11:].startswith(BATCH)]
            single = [name for name in names if not name[11:].startswith(BATCH)]
            streams = [self._of_files([name], of_day, seen) for name in batches]
            yield from heapq.merge(*streams, self._of_files(single, of_day, seen))

    def _of_files(self, names: list[str], of_day: range, seen: set[int]) -> Iterator[Moment]:
        start, end = self.since.timestamp(), (self.now + AHEAD).timestamp()
        for name in names:
            for row in self._rows(name):
                # Python salts the hash for each process, so nobody can construct two lines with one
                # hash.
                known = hash(row)
                if not row or known in seen:
                    continue
                seen.add(known)
                line = parsed_line(row)
                if isinstance(line, WhyLeftOut):
                    self.left_out[line] += 1
                    continue
                seconds = datetime.fromisoformat(line.judged_at).timestamp()
                if seconds > end:
                    self.left_out[WhyLeftOut.FUTURE] += 1
                elif int(seconds) not in of_day:
                    # The line may be in its own day's folder too, and would then count twice.
                    self.left_out[WhyLeftOut.OTHER_DAY] += 1
                elif seconds >= start:
                    yield Moment(seconds, line)

    def _rows(self, name: str) -> Iterator[bytes]:
        """Yield a file's lines; an unreadable file is counted, and the others are still read."""
        try:
            yield from self.folder.rows(name, MAX_HISTORY_LINE_BYTES)
        except StorageError:
            # Another call has joined the file with others meanwhile. This pass does not know the
            # new file, so fail.
            if not self.folder.has(name):
                raise
            self.left_out[WhyLeftOut.NO_FILE] += 1


def _seconds_of(day: str) -> range:
    """Return the seconds since 1970 of a day in UTC; empty for a date that does not exist."""
    with suppress(ValueError):
        first = int(datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp())
        return range(first, first + DAY_SECONDS)
    return range(0)


def parsed_line(row: bytes) -> HistoryLine | RollbackLine | WhyLeftOut:
    """Parse a line strictly; return the reason if it is not a valid line."""
    if len(row) > MAX_HISTORY_LINE_BYTES:
        return WhyLeftOut.TOO_LONG
    with suppress(ValidationError):
        line = _LINE.validate_json(row)
        # Of two equal keys pydantic silently keeps the last. So only lines without such a pair take
        # this fast way.
        if row.count(b'":') == len(line.model_fields_set):
            return line
    try:
        outline = outline_of_json(row, SOURCE)
        if outline is not None and outline.get("schema_version") != HISTORY_SCHEMA:
            return WhyLeftOut.FOREIGN
        if outline is not None and outline.get("kind") == "rollback":
            return read_document(RollbackLine, row, SOURCE)
        return read_document(HistoryLine, row, SOURCE)
    except DocumentError:
        return WhyLeftOut.BROKEN
