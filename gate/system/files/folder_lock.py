"""One call of the gate at a time in an output folder: a second one would wipe what the first reads.

It is a `flock` on a file of the folder: the kernel lets go of it when the process is gone, however
it ended, and the descriptor is not handed to programs that the gate starts.
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
# O_NONBLOCK: the commit under test may hold a FIFO of this name
LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MAX_NUMBER_BYTES = 20


@contextmanager
def held_folder(folder: Path) -> Iterator[None]:
    """Have a folder, made if need be, for this process alone while the body runs.

    Nothing else in it is touched. Raises `SettingsError` when another call has it, or a file has
    its name, and `StorageError` when no lock can be had.
    """
    descriptor = _open(folder)
    try:
        with storage_faults("locking", folder / LOCK):
            try:
                # not a file that exists or not: that would outlive a process that was killed
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _taken(folder, descriptor) from None
            _tell(descriptor, b"%d\n" % os.getpid())
        yield
        # only on a good end: after a fault the number is replaced by the next call all the same
        _tell(descriptor, b"")
    finally:
        os.close(descriptor)


@contextmanager
def one_writer(folder: Path) -> Iterator[None]:
    """Keep other writers out of a folder, made if need be, while the body runs; wait for them.

    The lock is on the folder itself: a lock file beside committed files would be an uncommitted
    change. Raises `StorageError` when no lock can be had.
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
    # above every checkout a link counts as what it leads to: the folder may be one of the caller's
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
    """Who has it, for the call that does not get it."""
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
    """As the reader named it, most likely."""
    here = Path.cwd()
    return safe_line(str(folder.relative_to(here) if folder.is_relative_to(here) else folder))
