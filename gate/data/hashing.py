"""Open the files of a data set without following a link, hash them, and remember their digests.

A path is opened part by part below the data set's descriptor. So somebody who replaces a folder by
a link meanwhile gains nothing (CWE-59, CWE-367). Nothing recurses, because the data may be of any
depth.

`DigestCache` trusts a file's stamp. Somebody who can set a file's times and keep its inode can
change it unseen. The cache is in a folder of the gate's account, which no training can write to.
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


# PATH_MAX of Linux is 4096: a training could not open a file with a longer path either.
MAX_NAME_BYTES: Final = 4000
_ACCESS: Final = {errno.EACCES, errno.EPERM}
_GONE: Final = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
Stamp = tuple[int, int, int, int]


class Seen(NamedTuple):
    """What a walk found under a name; a folder's name ends with a slash."""

    name: str
    mode: int
    size_bytes: int
    stamp: Stamp


def stamp_of(facts: os.stat_result) -> Stamp:
    """Return device, inode, mtime and ctime (nanoseconds), the stamp of `ListedFile`."""
    changed = facts.st_mtime_ns
    # Most files have two equal times. Sharing one object saves memory for a million of them.
    moved = changed if facts.st_ctime_ns == changed else facts.st_ctime_ns
    return facts.st_dev, facts.st_ino, changed, moved


def seen(name: str, facts: os.stat_result) -> Seen:
    """Return the facts about a file that are kept."""
    return Seen(name, facts.st_mode, facts.st_size, stamp_of(facts))


def walk(root: int, source: Path) -> Iterator[Seen]:
    """Yield everything below the folder `root`, folders before their content.

    Links and special files are yielded too; the caller decides what they mean. Raises `DataError`
    for a file that cannot be read or changes meanwhile.
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
    """The folder that was entered last, so that a folder below it takes one step, not many."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._folder = ""
        self._descriptor = os.dup(root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def move_to(self, folder: str) -> int:
        """Return the descriptor of a folder; the next move closes it."""
        below = folder.startswith(self._folder)
        start = self._descriptor if below else self._root
        rest = folder.removeprefix(self._folder) if below else folder
        with opened_folder(start, rest) as opened:
            os.dup2(opened, self._descriptor, inheritable=False)
        self._folder = folder
        return self._descriptor


@contextmanager
def opened_folder(root: int, folder: str) -> Iterator[int]:
    """Provide a descriptor of a folder below `root`; `folder` is relative and ends with a slash."""
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
    """Return the error for an entry that is neither a file nor a folder."""
    kind = KINDS.get(stat.S_IFMT(mode), "no regular file")
    link = stat.S_ISLNK(mode)
    return DataError(
        f"{place(source, name)} is {kind}; declared data holds files and folders only",
        hint="Name the real path, or copy what the link leads to; links are not followed."
        if link
        else "Move it out of the data.",
    )


def changed(source: Path, name: str) -> DataError:
    """Return the error for a file that changed while it was read."""
    return DataError(
        f"{place(source, name)} changed while it was read",
        hint="Let nothing write to the data while the gate runs, then run it again.",
    )


def place(source: Path, name: str) -> str:
    """Return the path of a data set's file, as a message shows it."""
    return shown_name(str(source / name) if name not in {"", "./"} else str(source))


@contextmanager
def data_faults(source: Path, name: str) -> Iterator[None]:
    """Turn an `OSError` in the body into a `DataError` that names the file."""
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
# the unit of `st_blocks` (stat(2)), whatever the disk's block size
DISK_BLOCK_BYTES: Final = 512
ZEROS: Final = bytes(BLOCK_BYTES)


class Buffers(threading.local):
    """One block of memory for each thread, reused so that it stays in the processor's cache."""

    def __init__(self) -> None:
        self.block = memoryview(bytearray(BLOCK_BYTES))


def file_digest(
    folder: int | None, path: str, listed: ListedFile, source: Path, buffers: Buffers
) -> str:
    """Return the SHA-256 of a file as 64 digits; `path` is relative to the descriptor `folder`.

    Raises `DataError` unless inode, size and times are the listed ones, both before and after
    reading.
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
    """Hash at most `most` bytes from the current position; return the number of bytes."""
    count = 0
    while count < most:
        size = os.readv(descriptor, [block[: most - count]])
        if not size:
            break
        hasher.update(block[:size])
        count += size
    return count


def _hash_sparse(descriptor: int, size_bytes: int, hasher: _Hash, block: memoryview) -> int:
    """Hash a file with holes, feeding zeros for the holes (SEEK_DATA in lseek(2)).

    Returns the number of bytes, holes included.
    """
    place = 0
    while place < size_bytes:
        start, end = _next_data(descriptor, place, size_bytes)
        for begin in range(place, start, BLOCK_BYTES):
            hasher.update(ZEROS[: min(BLOCK_BYTES, start - begin)])
        os.lseek(descriptor, start, os.SEEK_SET)
        count = _hash_bytes(descriptor, end - start, hasher, block)
        place = start + count
        # the file became shorter meanwhile
        if place < end:
            break
    return place


def _next_data(descriptor: int, place: int, size_bytes: int) -> tuple[int, int]:
    """Return start and end of the next bytes that are stored on disk, from `place` on."""
    try:
        start = os.lseek(descriptor, place, os.SEEK_DATA)
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
    except OSError as error:
        # ENXIO: only a hole is left. Other errors may be a failing disk, so they are not taken for
        # a hole.
        if error.errno == errno.ENXIO:
            return size_bytes, size_bytes
        # the file system does not support SEEK_DATA
        if error.errno in {errno.EINVAL, errno.EOPNOTSUPP}:
            return place, size_bytes
        raise
    return min(start, size_bytes), min(end, size_bytes)


FILE_NAME: Final = "file-digests.sqlite3"
WAIT_SECONDS: Final = 5.0
# A file that changes twice within one tick of the disk's clock keeps its times. So a file that
# changed shortly before is not remembered (git's documentation, racy-git.txt). FAT has ticks of 2
# s.
SETTLED_NANOSECONDS: Final = 4 * 10**9
# Above this number of rows the oldest are deleted, so that the cache does not grow forever.
MAX_ROWS: Final = 5_000_000
_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")
_TABLE: Final = """
create table if not exists files (
  device integer, inode integer, size integer, modified integer, changed integer, sha256 text,
  primary key (device, inode)
) without rowid
"""
# Asked in batches: one query for each of a million files would take as long as reading small files.
ASKED_AT_ONCE: Final = 500
_ASK: Final = "select * from files where device = ? and inode in ({})"
_PUT: Final = "insert or replace into files values (?, ?, ?, ?, ?, ?)"
_COUNT: Final = "select count(*) from files"
_MAKE_ROOM: Final = """
delete from files where (device, inode) in
  (select device, inode from files order by changed limit ?)
"""


class DigestCache:
    """A database of file digests; if it is broken, locked or full, it just knows nothing.

    The gates of one machine share it. `prepare` makes its folder, or raises `DataError` if the
    folder must not be used. `now_ns` returns the time of day in nanoseconds.
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
        """Return the known digests, by the index of each file in `files`."""
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
                        # The database may contain anything, so check the form of a digest.
                        if isinstance(digest, str) and _DIGEST.match(digest):
                            digests[place] = digest
        return digests

    def remember(self, files: Iterable[ListedFile], began_ns: int) -> None:
        """Store the digests of files that had not changed shortly before `began_ns`."""
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
        # Made before SQLite opens it, with mode 0600, so that no other account reads it.
        os.close(writing.open_file(self._path, os.O_RDWR | os.O_CREAT))
        with closing(sqlite3.connect(self._path, timeout=self._wait_seconds)) as database:
            database.execute(_TABLE)
            yield database

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Ignore faults of the database: a digest that it does not have is computed."""
        try:
            yield
        # locked, not writable, or disk full; OverflowError: a number above 64 bits
        except (sqlite3.OperationalError, OSError, OverflowError, DataError):
            return
        except sqlite3.Error:
            # The file is not a valid database any more. Without it, the next gate makes a new one.
            with suppress(OSError):
                writing.remove(self._path)


def _key(file: ListedFile) -> tuple[int, int, int, int, int]:
    device, inode, modified, changed = file.stamp
    return _signed(device), _signed(inode), file.size_bytes, modified, changed


def _signed(number: int) -> int:
    """Return an unsigned 64-bit number as the signed one that SQLite can store."""
    return number - 2**64 if number >= 2**63 else number
