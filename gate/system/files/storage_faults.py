"""What the system says about files, in words that help."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gate.errors import StorageError
from gate.text.untrusted_text import safe_line

_FULL = {errno.ENOSPC, errno.EDQUOT}
_FULL_HINT = "Free some space there, or choose another folder; nothing was overwritten."
_HINTS = {
    errno.ENOENT: "Check the path; something else may have removed it.",
    errno.EACCES: "Give the account that runs the gate access to it.",
    errno.EPERM: "Give the account that runs the gate access to it.",
    errno.EFBIG: "Raise the limit (ulimit -f) of the account that runs the gate.",
    errno.EROFS: "Choose a folder on a writable disk.",
    errno.EMFILE: "Raise the limit of open files (ulimit -n).",
    errno.ELOOP: "Replace the link with the file itself; links are not followed.",
    errno.ENAMETOOLONG: "Use shorter names or fewer nested folders.",
}


@contextmanager
def storage_faults(action: str, path: Path) -> Iterator[None]:
    """Turn an `OSError` of the body into a `StorageError`; `action` is a word like `writing`."""
    try:
        yield
    except OSError as error:
        raise storage_fault(error, action, path) from error


def storage_fault(error: OSError, action: str, path: Path) -> StorageError:
    """The error itself, for a place that raises it in its own way."""
    name = safe_line(str(path))
    if error.errno in _FULL:
        return StorageError(f"disk full while {action} {name}", hint=_FULL_HINT)
    reason = error.strerror or str(error)
    hint = _HINTS.get(error.errno or 0, "Check the path and the disk that it is on.")
    return StorageError(f"{action} {name} failed: {reason}", hint=hint)


def require_room(path: Path, size_bytes: int) -> None:
    """Refuse to begin a file that cannot fit on its disk; call it within `storage_faults`.

    A hole in a file takes no room until it is copied: without this a training could have the gate
    fill the machine's disk for as long as that takes.
    """
    disk = os.statvfs(path.parent)
    # `f_bfree` and not `f_bavail`: root may use what is kept back for it
    free_bytes = disk.f_bfree * disk.f_frsize
    # some file systems do not say
    if disk.f_blocks and size_bytes > free_bytes:
        raise StorageError(
            f"disk full while writing {safe_line(str(path))}: "
            f"the file has {size_bytes:,} bytes, {free_bytes:,} are free",
            hint=_FULL_HINT,
        )
