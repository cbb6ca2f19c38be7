"""Digests of files that were read before: for `verify: cached`, and never asked for `full`.

It trusts the stamp of a file: who can set its times and keep its inode can change it unseen. It
lies in a folder of the gate's account, which no training can write to.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import groupby, islice
from pathlib import Path
from typing import Final

from gate.data.declared import ListedFile
from gate.errors import DataError
from gate.system.files import writing

FILE_NAME: Final = "file-digests.sqlite3"
WAIT_SECONDS: Final = 5.0
# A file that changes twice within one tick of the disk's clock keeps its times: what changed this
# shortly before is not remembered (git's documentation, racy-git.txt). FAT has ticks of 2 s.
SETTLED_NANOSECONDS: Final = 4 * 10**9
# nothing is remembered for ever: rows above this make room, the oldest first
MAX_ROWS: Final = 5_000_000
_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")
_TABLE: Final = """
create table if not exists files (
  device integer, inode integer, size integer, modified integer, changed integer, sha256 text,
  primary key (device, inode)
) without rowid
"""
# many at once: a question for each of a million files would take as long as to read small ones
ASKED_AT_ONCE: Final = 500
_ASK: Final = "select * from files where device = ? and inode in ({})"
_PUT: Final = "insert or replace into files values (?, ?, ?, ?, ?, ?)"
_COUNT: Final = "select count(*) from files"
_MAKE_ROOM: Final = """
delete from files where (device, inode) in
  (select device, inode from files order by changed limit ?)
"""


class DigestCache:
    """A database in a folder; one that is broken, locked or full answers nothing and is no fault.

    Gates on one machine share it. `prepare` has the folder, or raises `DataError` where it must not
    be used. `now_ns` is the time of day in nanoseconds.
    """

    def __init__(
        self,
        folder: Path,
        *,
        prepare: Callable[[], None] | None = None,
        now_ns: Callable[[], int] = time.time_ns,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._path = folder / FILE_NAME
        self._prepare = prepare
        self.now_ns = now_ns
        self._wait_seconds = wait_seconds

    def known(self, files: Sequence[ListedFile]) -> dict[int, str]:
        """The digests that are known, by the files' places in the order given."""
        found: dict[int, str] = {}
        with self._quiet(), self._opened() as database:
            for device, places in groupby(range(len(files)), lambda place: files[place].stamp[0]):
                while some := list(islice(places, ASKED_AT_ONCE)):
                    keys = [_key(files[place]) for place in some]
                    ask = _ASK.format(",".join("?" * len(keys)))
                    asked = (_signed(device), *(key[1] for key in keys))
                    rows = {row[:5]: row[5] for row in database.execute(ask, asked)}
                    for place, key in zip(some, keys, strict=True):
                        digest = rows.get(key)
                        # the table may hold anything: only a digest is one
                        if isinstance(digest, str) and _DIGEST.match(digest):
                            found[place] = digest
        return found

    def remember(self, files: Iterable[ListedFile], began_ns: int) -> None:
        """Keep the digests of files that had settled when the listing began, by `now_ns`."""
        newest = began_ns - SETTLED_NANOSECONDS
        rows = (
            (*_key(file), file.sha256)
            for file in files
            if file.sha256 and max(file.stamp[2:]) <= newest
        )
        with self._quiet(), self._opened() as database:
            with database:
                database.executemany(_PUT, rows)
            (count,) = database.execute(_COUNT).fetchone()
            if count > MAX_ROWS:
                with database:
                    database.execute(_MAKE_ROOM, (count - MAX_ROWS,))

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        if self._prepare is not None:
            self._prepare()
        writing.make_folders(self._path.parent)
        # made before the library opens it, so that no other account reads names of inodes
        os.close(writing.open_file(self._path, os.O_RDWR | os.O_CREAT))
        with closing(sqlite3.connect(self._path, timeout=self._wait_seconds)) as database:
            database.execute(_TABLE)
            yield database

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Nothing is lost with a cache: what it does not know is read."""
        try:
            yield
        # locked, not writable, no space; OverflowError: a number beyond 64 bits
        except (sqlite3.OperationalError, OSError, OverflowError, DataError):
            return
        except sqlite3.Error:
            # no database any more: the next gate begins a new one
            with suppress(OSError):
                writing.remove(self._path)


def _key(file: ListedFile) -> tuple[int, int, int, int, int]:
    device, inode, modified, changed = file.stamp
    return _signed(device), _signed(inode), file.size_bytes, modified, changed


def _signed(number: int) -> int:
    """An unsigned number of 64 bits as SQLite keeps one."""
    return number - 2**64 if number >= 2**63 else number
