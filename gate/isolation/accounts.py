"""A lock on each account for trainings, among all gates that could harm each other by sharing it.

Whoever has one ends all its processes and wipes its files from the folders that every account may
write in. So the lock lies in those very folders: where two gates wipe one folder, in whatever
containers they are, they find each other's lock there. `/run` would be each container's own, and so
would an abstract socket where `/dev/shm` and System V objects are shared (`--ipc=host`); besides,
a training could bind every such name, as it could lock any file that it may open. These files lie
in a folder of root's that no other account may enter.

It is a `flock`: the kernel lets go of it when the process is gone, however it ended. Descriptors
are not handed to programs that the gate starts, so a training that lives on holds nothing.

Two containers that share the table of processes and not one of the folders see only the processes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from gate.errors import RunError
from gate.isolation.residue import FILE_FOLDERS
from gate.system.files import trees
from gate.system.files.storage_faults import storage_fault, storage_faults

LOCKS = "repro-gate-accounts"
# O_NOFOLLOW: the folder is root's, yet a link there would have root open what it leads to.
LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
# the locks of this process by account; they are let go when it ends, at the latest
_held: Final[dict[int, ExitStack]] = {}


def acquire_uid(uid: int, places: tuple[Path, ...] = FILE_FOLDERS) -> bool:
    """Take an account for this process; False when another process has it, or this one already.

    Raises `StorageError` or `RunError` where no lock can be had: better no training than one whose
    processes another gate may end.
    """
    with ExitStack() as taken:
        found = 0
        for place in places:
            lock = _open_lock(place, uid)
            if lock is None:
                continue
            found += 1
            taken.callback(os.close, lock)
            with storage_faults("locking", place / LOCKS):
                try:
                    # not waited for: there are other accounts,
                    # and a gate may hold this one for an hour
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
                # what tidies /tmp by age leaves a young file alone
                os.utime(lock)
        if not found:
            raise RunError(
                "cannot lock the training's account: "
                f"{', '.join(map(str, places))} are missing or read-only",
                hint="Give the gate's machine or container a writable /tmp.",
            )
        _held[uid] = taken.pop_all()
    return True


def release_uid(uid: int) -> None:
    """Give an account back; nothing happens when this process does not hold it."""
    held = _held.pop(uid, None)
    if held is not None:
        held.close()


def _open_lock(place: Path, uid: int) -> int | None:
    """The descriptor of an account's file there; None where a training can leave nothing."""
    try:
        shared = os.open(place, trees.FOLDER_FLAGS)
    except (FileNotFoundError, NotADirectoryError):
        # not on this machine; nothing is wiped behind a link
        return None
    try:
        return _file_of(uid, shared, place / LOCKS)
    except OSError as error:
        if error.errno == errno.EROFS:
            return None
        raise storage_fault(error, "locking", place / LOCKS) from error
    finally:
        os.close(shared)


def _file_of(uid: int, shared: int, path: Path) -> int:
    with suppress(FileExistsError):
        # /tmp is anybody's: who made the folder is only believed after the look below
        os.mkdir(LOCKS, 0o700, dir_fd=shared)
    with trees.open_folder(LOCKS, within=shared) as locks:
        facts = os.fstat(locks)
        # a folder of somebody else's could hold a file that is locked for ever, or hand out two
        # locks
        if facts.st_uid != os.geteuid() or facts.st_mode & OTHERS_MAY_WRITE:
            raise RunError(
                f"{path} is not private to the gate: its owner is account {facts.st_uid}",
                hint="Somebody else created it, or opened it to others. Remove it; the gate "
                "creates it "
                "anew.",
            )
        return os.open(str(uid), LOCK_FLAGS, 0o600, dir_fd=locks)
