"""Where the lines of a history are stored: immutable files of lines, in folders by day.

A file is named `DAY/TIME-GATE-DIGEST.jsonl`, after its content. So two writers never conflict, a
line that is written twice is the same file, and writing needs no reading. `compact` joins a day's
files into batches. It writes each batch before it removes the batch's sources.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

from gate.errors import PublishError, StorageError
from gate.fleet.store import HistoryStore
from gate.system.files.port import Files
from gate.system.files.writing import remove
from gate.text.digests import sha256_hex
from gate.verdict.history_lines import HistoryLine, RollbackLine, line_bytes

MAX_NAMES: Final = 2_000_000
# the limit for a day, or for the batches that it was joined into
MAX_FILE_BYTES: Final = 256 * 1024 * 1024
BATCH_BYTES: Final = 64 * 1024 * 1024
DIGITS: Final = 16
NAME: Final = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})/[A-Za-z0-9][A-Za-z0-9._-]{0,120}\.jsonl\Z")
LINES: Final = "lines"
BATCH: Final = "batch-"
JUDGED_AT: Final = re.compile(rb'"judged_at":"([^"\\]{1,40})"')
DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")


def line_name(line: HistoryLine | RollbackLine) -> str:
    """Return the file name of one line."""
    data = line_bytes(line)
    when = datetime.fromisoformat(line.judged_at).astimezone(UTC)
    return f"{when:%Y-%m-%d}/{when:%H%M%S}-{line.gate_id}-{sha256_hex(data)[:DIGITS]}.jsonl"


def branch_path(name: str) -> str:
    """Return the path of a file of lines on the branch."""
    return f"{LINES}/{name}"


def append(store: HistoryStore, line: HistoryLine | RollbackLine) -> str:
    """Store a line, and return its file's name in the store."""
    name = line_name(line)
    store.write(name, line_bytes(line) + b"\n")
    return name


class FolderStore:
    """The `HistoryStore` in a folder, which several machines may share."""

    def __init__(self, folder: Path, files: Files) -> None:
        self._folder = folder
        self._files = files

    @property
    def shown(self) -> str:
        """The path."""
        return str(self._folder)

    def write(self, name: str, data: bytes) -> None:
        """Write a file completely or not at all."""
        with self._files.replacing(self._folder / name) as file:
            file.write(data)

    def names(self, since: date) -> Iterator[str]:
        """Yield the names from a day on, in order."""
        for day in self._days(since):
            if self._files.is_folder(self._folder / day):
                for name in self._files.list_names(self._folder / day, max_names=MAX_NAMES):
                    if NAME.match(f"{day}/{name}"):
                        yield f"{day}/{name}"

    def strays(self, since: date) -> int:
        """Return the number of links and files that are named like a day; they are not read."""
        return sum(not self._files.is_folder(self._folder / day) for day in self._days(since))

    def _days(self, since: date) -> Iterator[str]:
        for day in self._files.list_names(self._folder, max_names=MAX_NAMES):
            if DAY.match(day) and day >= since.isoformat():
                yield day

    def rows(self, name: str, longest: int) -> Iterator[bytes]:
        """Yield the lines of a file one by one; a longer line is cut to `longest` + 1 bytes."""
        with self._files.open_binary(self._folder / name, max_bytes=MAX_FILE_BYTES) as file:
            while row := file.readline(longest + 1):
                yield row.rstrip(b"\n")
                while len(row) > longest and not row.endswith(b"\n"):
                    row = file.readline(longest + 1)

    def has(self, name: str) -> bool:
        """Return whether anything has this name, even a link."""
        return self._files.exists(self._folder / name)

    def read(self, name: str) -> bytes:
        """Return a file's content, following no link."""
        return self._files.read_bytes(self._folder / name, max_bytes=MAX_FILE_BYTES)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; a missing file is no error."""
        for name in names:
            # another call may have joined and removed it too
            remove(self._folder / name)


def compact(store: HistoryStore, since: date, until: date) -> int:
    """Join the files of each day before `until` into batches; return how many files were joined.

    Lines are neither parsed nor changed, and a duplicate line is kept once. If this call is
    interrupted, or several run at once, each line is still in at least one file.
    """
    # Raises at once for a store that cannot remove files, before anything is written.
    store.remove(())
    joined = 0
    for day, names in by_day(store.names(since)):
        if day >= until.isoformat():
            break
        if len(names) > 1:
            joined += _joined(store, day, names)
    return joined


def by_day(names: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Group sorted names by day."""
    day, rows = "", list[str]()
    for name in names:
        if name[:10] != day:
            if rows:
                yield day, rows
            day, rows = name[:10], []
        rows.append(name)
    if rows:
        yield day, rows


def _joined(store: HistoryStore, day: str, names: list[str]) -> int:
    rows, size_bytes, sources, kept = dict[bytes, None](), 0, list[str](), 0
    batches = list[tuple[bytes, list[str]]]()

    def close() -> None:
        nonlocal rows, size_bytes, sources
        if sources:
            # Sorted by time, so that a reader can merge files without holding them in memory.
            batches.append((b"".join(row + b"\n" for row in sorted(rows, key=_time)), sources))
        rows, size_bytes, sources = {}, 0, []

    for name in names:
        try:
            data = store.read(name)
        except StorageError:
            # a link, or a file that another call has joined meanwhile
            continue
        # A full batch of an earlier call is not joined again.
        if len(data) >= BATCH_BYTES:
            continue
        if size_bytes + len(data) > 2 * BATCH_BYTES:
            close()
        rows.update(dict.fromkeys(row for row in data.split(b"\n") if row))
        size_bytes += len(data)
        sources.append(name)
    close()
    for data, sources in batches:
        if len(sources) == 1:
            continue
        batch = batch_name(day, data)
        store.write(batch, data)
        store.remove(name for name in sources if name != batch)
        kept += len(sources) - 1
    return kept


def batch_name(day: str, data: bytes) -> str:
    """Return the name of a file of several lines."""
    return f"{day}/{BATCH}{sha256_hex(data)[:DIGITS]}.jsonl"


def _time(row: bytes) -> bytes:
    """Return the bytes of the time that a line states."""
    match = JUDGED_AT.search(row)
    return match[1] if match else b""


def mirror(store: HistoryStore, since: date, folder: FolderStore) -> int:
    """Copy the files of a store from a day on that the folder lacks; return how many were copied.

    Afterwards, files that the store no longer has are removed from the folder.
    """
    gone, copied = set(folder.names(since)), 0
    for name in store.names(since):
        if name in gone:
            gone.remove(name)
            continue
        if not NAME.match(name):
            raise PublishError(
                f"{store.shown} lists a file name that no history uses",
                hint="Name a place that contains nothing but a history.",
            )
        folder.write(name, store.read(name))
        copied += 1
    folder.remove(gone)
    return copied
