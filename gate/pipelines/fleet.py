"""Copies a history to this machine and counts its lines in a confined process.

Anyone may write a history, so it is untrusted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Annotated, Final, TypeVar

from pydantic import Field

from gate.errors import EvidenceError
from gate.fleet.indicators import GroupBy, SloReport, slo_report
from gate.fleet.reading import Reading
from gate.fleet.remote_stores import opened_store
from gate.fleet.stores import FolderStore, mirror
from gate.isolation.confined_look import LARGE_ANSWER_BYTES, read_apart
from gate.settings.slo import SloSettings
from gate.system.files.port import Files
from gate.system.git.repository import Git
from gate.text.document import Document
from gate.text.documents import RecordForm
from gate.verdict.history_lines import AnyLine, HistoryLine, RollbackLine

# a year with ten thousand verdicts a day takes some minutes to count
READING_SECONDS: Final = 7200.0
MAX_SHOWN: Final = 100_000
_Record = TypeVar("_Record")


class WindowLines(Document):
    """The newest lines of a window, oldest first; `lines_total` counts all lines of the window."""

    lines: Annotated[tuple[AnyLine, ...], Field(max_length=MAX_SHOWN)]
    lines_total: int
    left_out: dict[str, int]


REPORT: Final[RecordForm[SloReport]] = RecordForm(SloReport)
SHOWN: Final[RecordForm[WindowLines]] = RecordForm(WindowLines)


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetCall:
    """A history to read, over `days` days before `now`.

    `cache` keeps copies of a remote store for the next call; without it they are removed.
    """

    place: str
    days: float
    now: datetime
    variables: Mapping[str, str]
    files: Files
    git: Git | None = None
    cache: Path | None = None

    @property
    def since(self) -> datetime:
        """The beginning of the window."""
        return self.now - timedelta(days=self.days)


def refuse_no_history(place: str, files: Files) -> None:
    """Raise `EvidenceError` if there is no folder at `place`."""
    if not files.is_folder(Path(place)):
        raise EvidenceError(
            f"there is no history in {place}",
            hint="`repro-gate history append` writes the first line, and so does a gate with "
            "publish.history.",
        )


@contextmanager
def local_folder(call: FleetCall) -> Iterator[FolderStore]:
    """Yield the history's files in a local folder; a remote store is copied first."""
    store = opened_store(call.place, call.variables, call.files, call.git)
    if isinstance(store, FolderStore):
        refuse_no_history(call.place, call.files)
        yield store
        return
    with tempfile.TemporaryDirectory(prefix="repro-gate-history-") as passing:
        copies = FolderStore(call.cache or Path(passing), call.files)
        mirror(store, call.since.astimezone(UTC).date(), copies)
        yield copies


def measured(call: FleetCall, settings: SloSettings, by: Sequence[GroupBy]) -> SloReport:
    """Return the service levels of the window."""
    return _looked_at(
        call, REPORT, lambda reading: slo_report(reading, settings, by, days=call.days)
    )


def newest_lines(call: FleetCall, most: int) -> WindowLines:
    """Return the newest lines of the window, `most` at most."""

    def look(reading: Reading) -> WindowLines:
        kept: list[HistoryLine | RollbackLine] = []
        total = 0
        lines = reading.lines()
        while some := [moment.line for moment in islice(lines, most)]:
            total += len(some)
            kept = [*kept, *some][-most:]
        return WindowLines(
            lines=tuple(kept), lines_total=total, left_out=reading.left_out_by_reason()
        )

    return _looked_at(call, SHOWN, look)


def _looked_at(
    call: FleetCall, form: RecordForm[_Record], look: Callable[[Reading], _Record]
) -> _Record:
    """Return what `look` finds in the window's lines, in the confined process."""
    with local_folder(call) as folder:
        reading = Reading(folder, call.since, call.now)
        return read_apart(
            form,
            lambda: look(reading),
            what=f"the history in {call.place}",
            seconds=READING_SECONDS,
            answer_bytes=LARGE_ANSWER_BYTES,
        )
