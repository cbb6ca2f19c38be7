"""Lock an output folder for one call of the gate: a second one would delete the first one's files.

The lock is a `flock` on a file in the folder. The kernel releases it when the process ends, however
it ends. The descriptor is closed in programs that the gate starts, so they cannot keep the lock.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gate.errors import SettingsError
from gate.system.files import writing
from gate.system.files.regular_files import refuse_foreign_links, require_regular, storage_faults
from gate.text.untrusted_text import safe_line

LOCK = ".lock"
# O_NONBLOCK: the commit under test may contain a FIFO of this name, and opening that would hang
LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MAX_NUMBER_BYTES = 20


@contextmanager
def held_folder(folder: Path) -> Iterator[None]:
    """Make a folder if needed, and lock it for this process while the body runs.

    Nothing else in it is touched. Raises `SettingsError` if another call has the lock or if a file
    has this name, and `StorageError` if locking is not possible.
    """
    descriptor = _open(folder)
    try:
        with storage_faults("locking", folder / LOCK):
            try:
                # Not a file whose existence is the lock: that would outlive a killed process.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _taken(folder, descriptor) from None
            _tell(descriptor, b"%d\n" % os.getpid())
        yield
        # Only if the body succeeds. After a fault the old number stays, which the next call
        # overwrites.
        _tell(descriptor, b"")
    finally:
        os.close(descriptor)


@contextmanager
def one_writer(folder: Path) -> Iterator[None]:
    """Keep other writers out of a folder while the body runs, and wait for them first.

    The folder is made if needed. The lock is on the folder itself: a lock file beside committed
    files would be an uncommitted change. Raises `StorageError` if locking is not possible.
    """
    with storage_faults("making", folder), writing.entered(folder, make=True) as entered:
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=entered)
    try:
        with storage_faults("locking", folder):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _open(folder: Path) -> int:
    # Links inside a checkout are refused. Above it they are followed, because the caller may name
    # any folder.
    with storage_faults("making", folder):
        writing.refuse_brought_link(folder)
    if folder.exists() and not folder.is_dir():
        raise SettingsError(
            f"{_shown(folder)} is a file, not a folder",
            hint="Move it away, or choose another folder with --out.",
        )
    with storage_faults("making", folder):
        writing.make_folders(folder)
    path = folder / LOCK
    with storage_faults("locking", path):
        refuse_foreign_links(path)
        descriptor = writing.open_file(path, LOCK_FLAGS)
    try:
        require_regular(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _tell(descriptor: int, text: bytes) -> None:
    """Store this process's number in the lock file, for the message of a call that is refused."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text, 0)


def _taken(folder: Path, descriptor: int) -> SettingsError:
    number = os.pread(descriptor, MAX_NUMBER_BYTES, 0).strip()
    who = f" (process {int(number)})" if number.isdigit() else ""
    return SettingsError(
        f"another repro-gate call{who} is using {_shown(folder)}",
        hint="Wait for it, or choose another folder with --out.",
    )


def _shown(folder: Path) -> str:
    """Return the folder relative to the current one, which is most likely how it was given."""
    here = Path.cwd()
    return safe_line(str(folder.relative_to(here) if folder.is_relative_to(here) else folder))
