"""Files of a data set, reached without following a link, and their SHA-256.

A path is opened part by part below the descriptor of the data set, so somebody who swaps a folder
for a link meanwhile leads nowhere (CWE-59, CWE-367). Nothing recurses: depth is up to the data.

It trusts the stamp of a file: who can set its times and keep its inode can change it unseen. It
is in a folder of the gate's account, which no training can write to.
"""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from gate.data.declared import ListedFile
from gate.errors import DataError
from gate.system.files import writing
from gate.system.files.regular_files import KINDS, READ_FLAGS
from gate.system.files.trees import FOLDER_FLAGS
from gate.text.untrusted_text import name_bytes, shown_name

if TYPE_CHECKING:
    from hashlib import _Hash


# PATH_MAX of Linux: what is longer no training could open by its path either
MAX_NAME_BYTES: Final = 4000
_ACCESS: Final = {errno.EACCES, errno.EPERM}
_GONE: Final = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
Stamp = tuple[int, int, int, int]


class Seen(NamedTuple):
    """What is below the data set's folder under a name; a folder's name ends with a slash."""

    name: str
    mode: int
    size_bytes: int
    stamp: Stamp


def stamp_of(facts: os.stat_result) -> Stamp:
    """Device, inode and the two times of change, in nanoseconds: the stamp of `ListedFile`."""
    changed = facts.st_mtime_ns
    # most files have twice the same time: a million of them keep it once
    moved = changed if facts.st_ctime_ns == changed else facts.st_ctime_ns
    return facts.st_dev, facts.st_ino, changed, moved


def seen(name: str, facts: os.stat_result) -> Seen:
    """The few facts that are kept of a file."""
    return Seen(name, facts.st_mode, facts.st_size, stamp_of(facts))


def walk(root: int, source: Path) -> Iterator[Seen]:
    """Everything below the folder `root`, folders before what they hold; `DataError` for a fault.

    What is no regular file is reported as anything else is: the caller decides what that means.
    """
    pending = [""]
    with _Position(root) as position:
        while pending:
            folder = pending.pop()
            with data_faults(source, folder):
                descriptor = position.move_to(folder)
                yield seen(folder or "./", os.fstat(descriptor))
                with os.scandir(descriptor) as entries:
                    for entry in entries:
                        name = folder + entry.name
                        if len(name_bytes(name)) > MAX_NAME_BYTES:
                            raise _too_deep(source, name)
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(name + "/")
                        else:
                            yield seen(name, entry.stat(follow_symlinks=False))


class _Position:
    """The folder that was looked at last, so that one below it is a step away and not many."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._folder = ""
        self._descriptor = os.dup(root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def move_to(self, folder: str) -> int:
        """The descriptor of a folder; it is closed by the next move."""
        below = folder.startswith(self._folder)
        start = self._descriptor if below else self._root
        rest = folder.removeprefix(self._folder) if below else folder
        with opened_folder(start, rest) as opened:
            os.dup2(opened, self._descriptor, inheritable=False)
        self._folder = folder
        return self._descriptor


@contextmanager
def opened_folder(root: int, folder: str) -> Iterator[int]:
    """A descriptor of a folder below `root`, its name relative and with a slash at the end."""
    descriptor = os.dup(root)
    try:
        for part in folder.split("/")[:-1]:
            below = os.open(part, FOLDER_FLAGS, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def unusual_file_fault(source: Path, name: str, mode: int) -> DataError:
    """The fault of what is neither a file nor a folder."""
    kind = KINDS.get(stat.S_IFMT(mode), "no regular file")
    link = stat.S_ISLNK(mode)
    return DataError(
        f"{place(source, name)} is {kind}; declared data holds files and folders only",
        hint="Name the real path, or copy what the link leads to; links are not followed."
        if link
        else "Move it out of the data.",
    )


def changed(source: Path, name: str) -> DataError:
    """The fault of a file that did not hold still."""
    return DataError(
        f"{place(source, name)} changed while it was read",
        hint="Let nothing write to the data while the gate runs, then run it again.",
    )


def place(source: Path, name: str) -> str:
    """The path of a file of a data set, as a message shows it."""
    return shown_name(str(source / name) if name not in {"", "./"} else str(source))


@contextmanager
def data_faults(source: Path, name: str) -> Iterator[None]:
    """Turn an `OSError` of the body into a `DataError` that names the file."""
    try:
        yield
    except OSError as error:
        where = place(source, name)
        if error.errno in _ACCESS:
            raise DataError(
                f"{where} cannot be read: no permission",
                hint="Let the account that runs the gate read it: files need r, folders r and x "
                "(chmod -R a+rX gives both to everybody).",
            ) from error
        if error.errno in _GONE:
            raise changed(source, name) from error
        raise DataError(
            f"reading {where} failed: {error.strerror or error}",
            hint="Check the disk that it is on.",
        ) from error


def _too_deep(source: Path, name: str) -> DataError:
    return DataError(
        f"{shown_name(str(source / name), limit=200)}… has a name of more than "
        f"{MAX_NAME_BYTES:,} bytes",
        hint="Use shorter names or fewer nested folders: no program could open it by its path.",
    )


BLOCK_BYTES: Final = 1024 * 1024
# unit of `st_blocks` (stat(2))
DISK_BLOCK_BYTES: Final = 512
ZEROS: Final = bytes(BLOCK_BYTES)


class Buffers(threading.local):
    """A block for each thread, used again and again, so that it stays in the processor's cache."""

    def __init__(self) -> None:
        self.block = memoryview(bytearray(BLOCK_BYTES))


def file_digest(
    folder: int | None, path: str, listed: ListedFile, source: Path, buffers: Buffers
) -> str:
    """The SHA-256 of a file's bytes as 64 digits; `path` is relative to the descriptor `folder`.

    `DataError` where it is not, before and after, the file that was listed: another inode, size or
    time of change.
    """
    with data_faults(source, listed.name):
        descriptor = os.open(path, READ_FLAGS, dir_fd=folder)
        try:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode):
                raise unusual_file_fault(source, listed.name, facts.st_mode)
            _require_same(facts, listed, source)
            hasher = sha256()
            if facts.st_blocks * DISK_BLOCK_BYTES < facts.st_size:
                count = _hash_sparse(descriptor, facts.st_size, hasher, buffers.block)
            else:
                count = _hash_bytes(descriptor, facts.st_size, hasher, buffers.block)
            if count != facts.st_size:
                raise changed(source, listed.name)
            _require_same(os.fstat(descriptor), listed, source)
        finally:
            os.close(descriptor)
    return hasher.hexdigest()


def _require_same(facts: os.stat_result, listed: ListedFile, source: Path) -> None:
    if facts.st_size != listed.size_bytes or stamp_of(facts) != listed.stamp:
        raise changed(source, listed.name)


def _hash_bytes(descriptor: int, most: int, hasher: _Hash, block: memoryview) -> int:
    """Read on from where the descriptor stands, `most` bytes at most; the number of bytes."""
    count = 0
    while count < most:
        size = os.readv(descriptor, [block[: most - count]])
        if not size:
            break
        hasher.update(block[:size])
        count += size
    return count


def _hash_sparse(descriptor: int, size_bytes: int, hasher: _Hash, block: memoryview) -> int:
    """As above for a file with holes, which are fed as zeros (SEEK_DATA in lseek(2))."""
    place = 0
    while place < size_bytes:
        start, end = _next_data(descriptor, place, size_bytes)
        for begin in range(place, start, BLOCK_BYTES):
            hasher.update(ZEROS[: min(BLOCK_BYTES, start - begin)])
        os.lseek(descriptor, start, os.SEEK_SET)
        count = _hash_bytes(descriptor, end - start, hasher, block)
        place = start + count
        # it became shorter meanwhile
        if place < end:
            break
    return place


def _next_data(descriptor: int, place: int, size_bytes: int) -> tuple[int, int]:
    """From where to where the next bytes lie that are on the disk."""
    try:
        start = os.lseek(descriptor, place, os.SEEK_DATA)
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
    except OSError as error:
        # nothing but a hole up to the end; a disk that fails is no hole
        if error.errno == errno.ENXIO:
            return size_bytes, size_bytes
        # a file system that cannot tell
        if error.errno in {errno.EINVAL, errno.EOPNOTSUPP}:
            return place, size_bytes
        raise
    return min(start, size_bytes), min(end, size_bytes)


FILE_NAME: Final = "file-digests.sqlite3"
WAIT_SECONDS: Final = 5.0
# A file that changes twice within one tick of the disk's clock keeps its times: what changed this
# shortly before is not remembered (git's documentation, racy-git.txt). FAT has ticks of 2 s.
SETTLED_NANOSECONDS: Final = 4 * 10**9
# nothing is remembered forever: rows above this make room, the oldest first
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
        digests: dict[int, str] = {}
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
                            digests[place] = digest
        return digests

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
