"""Open regular files that may be untrusted, and turn the system's faults into helpful errors."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gate.errors import StorageError
from gate.text.untrusted_text import safe_line

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


_FULL = {errno.ENOSPC, errno.EDQUOT}
_FULL_HINT = "Free some space there, or choose another folder; nothing was overwritten."
_HINTS = {
    errno.ENOENT: "Check the path; something else may have removed it.",
    errno.ENOTDIR: "Name a folder.",
    errno.EACCES: "Give the account that runs the gate access to it.",
    errno.EPERM: "Give the account that runs the gate access to it.",
    errno.EFBIG: "Raise the limit (ulimit -f) of the account that runs the gate.",
    errno.EROFS: "That disk is read-only: work in a copy on another one, or send the output there "
    "with --out.",
    errno.EMFILE: "Raise the limit of open files (ulimit -n).",
    errno.ELOOP: "Replace the link with the file itself; links are not followed.",
    errno.ENAMETOOLONG: "Use shorter names or fewer nested folders.",
}


@contextmanager
def storage_faults(action: str, path: Path) -> Iterator[None]:
    """Turn an `OSError` in the body into a `StorageError`; `action` is a word like `writing`."""
    try:
        yield
    except OSError as error:
        raise storage_fault(error, action, path) from error


def storage_fault(error: OSError, action: str, path: Path) -> StorageError:
    """Return the `StorageError` for an `OSError`, for code that raises it in its own way."""
    name = safe_line(str(path))
    if error.errno in _FULL:
        return StorageError(f"disk full while {action} {name}", hint=_FULL_HINT)
    reason = error.strerror or str(error)
    hint = _HINTS.get(error.errno or 0, "Check the path and the disk that it is on.")
    return StorageError(f"{action} {name} failed: {reason}", hint=hint)


def require_room(path: Path, size_bytes: int) -> None:
    """Raise `StorageError` if a file of this size cannot fit on the disk.

    Call it within `storage_faults`. A hole in a sparse file takes no space until it is copied.
    Without this check a training could make the gate fill the machine's disk.
    """
    disk = os.statvfs(path.parent)
    # `f_bfree` rather than `f_bavail`: root may also use the reserved blocks.
    free_bytes = disk.f_bfree * disk.f_frsize
    # some file systems do not report their size
    if disk.f_blocks and size_bytes > free_bytes:
        raise StorageError(
            f"disk full while writing {safe_line(str(path))}: "
            f"the file has {size_bytes:,} bytes, {free_bytes:,} are free",
            hint=_FULL_HINT,
        )


BUFFER_BYTES = 1024 * 1024
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: Path, max_bytes: int) -> io.BufferedReader:
    """Open a regular file for reading.

    Raises `StorageError` for anything but a regular file of at most `max_bytes`. If the file grows
    above the limit while it is read, reading raises `StorageError` too.
    """
    with storage_faults("reading", path):
        refuse_foreign_links(path)
        # Check before opening, because opening a device can have an effect.
        require_regular(path, os.lstat(path))
        # Check again after opening, with O_NOFOLLOW and fstat: a link or a FIFO may have replaced
        # the file in between (CWE-367).
        raw = CappedReader(os.open(path, READ_FLAGS), path, max_bytes)
        file: io.BufferedReader = io.BufferedReader(raw, BUFFER_BYTES)
        try:
            facts = os.fstat(file.fileno())
            require_regular(path, facts)
            # This is the size now. `CappedReader` enforces the limit while the file is read.
            if facts.st_size > max_bytes:
                raise _too_large(path, max_bytes)
        except StorageError:
            file.close()
            raise
        return file


class CappedReader(io.RawIOBase):
    """Reads a descriptor up to a limit; the object owns the descriptor and closes it."""

    def __init__(self, descriptor: int, path: Path, max_bytes: int) -> None:
        self._descriptor = descriptor
        self._path = path
        self._max_bytes = max_bytes

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True: the descriptor is a regular file's."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move the position, as in `io.RawIOBase`."""
        return os.lseek(self._descriptor, offset, whence)

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read into the buffer, as in `io.RawIOBase`; raises `StorageError` above the limit."""
        with storage_faults("reading", self._path):
            count = os.readv(self._descriptor, [buffer])
        if count and self.tell() > self._max_bytes:
            raise _too_large(self._path, self._max_bytes)
        return count

    def close(self) -> None:
        """Close the descriptor, only once."""
        if not self.closed:
            os.close(self._descriptor)
        super().close()


def refuse_foreign_links(path: Path) -> None:
    """Refuse a path that leads through another account's link, which could point to any secret.

    Links of root and of the gate's account are fine (`/tmp` is a link on some machines).
    """
    for folder in path.absolute().parents:
        facts = os.lstat(folder)
        # O_NOFOLLOW applies to the last part of a path only, so check the folders above here.
        if stat.S_ISLNK(facts.st_mode) and facts.st_uid not in {0, os.geteuid()}:
            raise StorageError(
                f"{safe_line(str(path))} leads through {safe_line(str(folder))}, "
                "a link of another account",
                hint="Let the training write into real folders.",
            )


def refuse_links(path: Path, below: Path) -> None:
    """Raise `StorageError` if a path is a link, or leads through one, below a folder.

    Missing parts are fine. Use it for places that root writes to, in a folder with content that
    somebody else chose.
    """
    for step in (path, *path.parents):
        if step == below or not step.is_relative_to(below):
            return
        if step.is_symlink():
            raise StorageError(
                f"{safe_line(str(path))} leads through {safe_line(str(step))}, a link",
                hint="Remove the link from the commit, or choose another folder.",
            )


def require_regular(path: Path, facts: os.stat_result) -> None:
    """Raise `StorageError`, which names the kind of file, for anything but a regular file."""
    if not stat.S_ISREG(facts.st_mode):
        raise StorageError(
            f"{safe_line(str(path))} is {KINDS[stat.S_IFMT(facts.st_mode)]}, not a regular file",
            hint="Name a file in it."
            if stat.S_ISDIR(facts.st_mode)
            else "Only regular files are read and written; links are not followed.",
        )


def _too_large(path: Path, max_bytes: int) -> StorageError:
    return StorageError(
        f"{safe_line(str(path))} is larger than {max_bytes:,} bytes",
        hint="Make it smaller; the limit protects the machine that runs the gate.",
    )
