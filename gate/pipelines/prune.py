"""Removes expired lines from a history; a confined process decides which lines those are.

No line is parsed in this process, which may hold a store's credentials. The remaining lines of a
file are written before the file is removed, so an interrupted call loses nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from gate.errors import StorageError
from gate.fleet.reading import Reading
from gate.fleet.remote_stores import opened_store
from gate.fleet.retention import (
    AnyKept,
    DayRest,
    FileRest,
    LineClass,
    NewestLines,
    Retention,
    newest_lines_of_gates,
    rest_of_day,
    rows_of,
)
from gate.fleet.store import HistoryStore
from gate.fleet.stores import FolderStore, batch_name, by_day
from gate.isolation.confined_look import LARGE_ANSWER_BYTES, read_apart
from gate.pipelines.fleet import READING_SECONDS, FleetCall, local_folder
from gate.text.digests import sha256_hex
from gate.text.documents import RecordForm

NEWEST: Final[RecordForm[NewestLines]] = RecordForm(NewestLines)
REST: Final[RecordForm[DayRest]] = RecordForm(DayRest)
_Record = TypeVar("_Record")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pruned:
    """How many lines of each class were kept, and how many were removed or would be."""

    kept: Mapping[LineClass, int]
    dropped: Mapping[LineClass, int]


def prune(call: FleetCall, retention: Retention, *, dry_run: bool) -> Pruned:
    """Remove expired lines from the days of the call's window."""
    store = opened_store(call.place, call.variables, call.files, call.git)
    # an empty removal raises for a store that cannot remove, before anything is written
    store.remove(())
    kept, dropped = Counter[LineClass](), Counter[LineClass]()
    with local_folder(call) as folder:
        reading = Reading(folder, call.since, call.now)
        newest = frozenset(_apart(call, NEWEST, lambda: newest_lines_of_gates(reading)).lines)
        oldest_kept = retention.first_day(LineClass.OTHER)
        for day, names in by_day(folder.names(call.since.date())):
            # days come in order, and no line of a newer day has expired
            if day >= oldest_kept:
                break
            rest = _rest(call, folder, day, names, retention, newest)
            kept.update(rest.kept)
            dropped.update(rest.dropped)
            for file in () if dry_run else rest.files:
                _replace(store, day, file)
    return Pruned(kept=kept, dropped=dropped)


def _rest(
    call: FleetCall,
    folder: FolderStore,
    day: str,
    names: list[str],
    retention: Retention,
    newest: AnyKept,
) -> DayRest:
    return _apart(call, REST, lambda: rest_of_day(_contents(folder, names), day, retention, newest))


def _contents(folder: FolderStore, names: list[str]) -> Iterator[tuple[str, bytes]]:
    for name in names:
        # leave a link or an over-long file alone: it contains no line
        with suppress(StorageError):
            yield name, folder.read(name)


def _apart(call: FleetCall, form: RecordForm[_Record], look: Callable[[], _Record]) -> _Record:
    return read_apart(
        form,
        look,
        what=f"the history in {call.place}",
        seconds=READING_SECONDS,
        answer_bytes=LARGE_ANSWER_BYTES,
    )


def _replace(store: HistoryStore, day: str, file: FileRest) -> None:
    """Replace a file by its remaining lines; leave it alone if it has changed since it was read."""
    data = store.read(file.name)
    if sha256_hex(data) != file.sha256:
        return
    if file.kept:
        rows = rows_of(data)
        left = b"".join(rows[number] + b"\n" for number in file.kept)
        # written first: a call that stops in between loses no line
        store.write(batch_name(day, left), left)
    store.remove((file.name,))
