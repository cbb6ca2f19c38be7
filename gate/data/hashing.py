"""Every file below a folder, reached over descriptors of folders: no link is ever followed.

A path is opened part by part below the descriptor of the data set, so somebody who swaps a folder
for a link meanwhile leads nowhere (CWE-59, CWE-367). Nothing recurses: depth is up to the data.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Self

from gate.errors import DataError
from gate.system.files.reading import KINDS
from gate.system.files.trees import FOLDER_FLAGS
from gate.text.file_names import name_bytes, shown_name

# PATH_MAX of Linux: what is longer no training could open by its path either
MAX_NAME_BYTES: Final = 4000
_ACCESS: Final = {errno.EACCES, errno.EPERM}
_GONE: Final = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
Stamp = tuple[int, int, int, int]


class Seen(NamedTuple):
    """What lies below the data set's folder under a name; a folder's name ends with a slash."""

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

    What is no regular file is told as anything else is: the caller decides what that means.
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
        with opened_folder(start, rest) as found:
            os.dup2(found, self._descriptor, inheritable=False)
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


def refused(source: Path, name: str, mode: int) -> DataError:
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
