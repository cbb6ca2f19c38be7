"""Accounts for trainings: each is held by one gate at a time, and nothing of it is left behind.

When a run returns its account, all its processes are killed. Its files are removed from the folders
in which every account may write. So the lock is in those same folders. Two gates that wipe one
folder find each other's lock there, in whichever containers they run. Other places would not do.
`/run` differs between containers, and so does the namespace of abstract sockets, even where
`/dev/shm` and System V objects are shared (`--ipc=host`). A training could also bind each such
name, as it could lock any file that it may open. The lock files are in a folder of root's that no
other account may enter.

The lock is a `flock`: the kernel releases it when the process is gone, however it ended. Programs
that the gate starts do not inherit the descriptor, so a surviving training holds no lock.

Two containers that share the process table but none of the folders see only each other's processes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from gate.errors import RunError
from gate.isolation.modes import Credentials
from gate.isolation.process_table import PROC, require_other_account
from gate.system.files import trees
from gate.system.files.regular_files import storage_fault, storage_faults

# folders in which every account may write, in a Debian image or on a host
FILE_FOLDERS = tuple(
    Path(name)
    for name in ("/tmp", "/var/tmp", "/dev/shm", "/run/lock")  # noqa: S108 - wiped, not used
)
# the last contains message queues
SHARED_FOLDERS = (*FILE_FOLDERS, Path("/dev/mqueue"))
# ipcrm(1)'s switches for the three kinds of System V objects, by the name of their table
SYSTEM_V = {"shm": "--shmem-id", "sem": "--semaphore-id", "msg": "--queue-id"}
IPCRM = "/usr/bin/ipcrm"
REMOVAL_SECONDS = 10.0


def remove_residue(account: Credentials, folders: tuple[Path, ...] = SHARED_FOLDERS) -> None:
    """Remove every entry of the account in the shared folders, and its System V objects.

    Call it when no process of the account lives. It follows no link and touches nothing of other
    accounts. Raises `StorageError` or `RunError` if something cannot be removed.
    """
    require_other_account(account)
    for folder in folders:
        for entry in _entries_of(account.uid, folder):
            with storage_faults("removing", entry):
                # safe only because the account's processes are gone: none can swap a folder for a
                # link
                trees.remove_tree(entry)
    _remove_system_v(account)


def _entries_of(uid: int, folder: Path) -> Iterator[Path]:
    """Yield entries that belong to `uid`, including those in root's world-writable folders.

    Folders of a third account are not searched: it could swap its folder for a link meanwhile.
    """
    pending = [folder]
    while pending:
        current = pending.pop()
        # a link, an entry that is gone meanwhile, or a folder that this machine lacks
        gone = suppress(FileNotFoundError, NotADirectoryError)
        with gone, trees.open_folder(current) as descriptor, os.scandir(descriptor) as entries:
            for entry in entries:
                with gone:
                    facts = entry.stat(follow_symlinks=False)
                    # check the entry's owner, not the folder's: a folder of root's may contain
                    # files of everybody
                    if facts.st_uid == uid:
                        yield current / entry.name
                    elif _open_to_all(facts):
                        pending.append(current / entry.name)


def _open_to_all(facts: os.stat_result) -> bool:
    writable = bool(facts.st_mode & stat.S_IWOTH)
    return facts.st_uid == 0 and stat.S_ISDIR(facts.st_mode) and writable


def _remove_system_v(account: Credentials) -> None:
    """Remove the account's System V objects, as that account.

    In a container root may not remove objects of another account.
    """
    switches = [f"{SYSTEM_V[kind]}={number}" for kind, number in _system_v_of(account.uid)]
    if not switches:
        return
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            (IPCRM, *switches),
            user=account.uid,
            group=account.gid,
            extra_groups=(),
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=REMOVAL_SECONDS,
        )
    left = list(_system_v_of(account.uid))
    if left:
        raise RunError(
            f"the training left System V objects that cannot be removed: {left[:5]}",
            hint="They can pass data from one run to the next. Install ipcrm (package util-linux), "
            "or restart the machine.",
        )


def _system_v_of(uid: int) -> Iterator[tuple[str, int]]:
    """Yield kind and number of each object that the account owns or created, from /proc/sysvipc."""
    for kind in SYSTEM_V:
        try:
            head, *rows = (PROC / "sysvipc" / kind).read_text("ascii").splitlines()
        except FileNotFoundError:
            # the kernel was built without such objects (CONFIG_SYSVIPC)
            continue
        columns = head.split()
        for row in rows:
            numbers = [int(word) for word in row.split()]
            facts = dict(zip(columns, numbers, strict=True))
            if uid in {facts["uid"], facts["cuid"]}:
                # the identity is the second column, which has a different name in each table
                yield kind, numbers[1]


LOCKS = "repro-gate-accounts"
# O_NOFOLLOW: the folder is root's, but root must never open what a link points to
LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
# the locks of this process by account; the kernel releases them when the process ends
_held: Final[dict[int, ExitStack]] = {}


def acquire_uid(uid: int, places: tuple[Path, ...] = FILE_FOLDERS) -> bool:
    """Lock an account for this process; return False if it is locked already, here or elsewhere.

    Raises `StorageError` or `RunError` if no lock can be made: no training is better than one whose
    processes another gate may kill.
    """
    with ExitStack() as taken:
        number = 0
        for place in places:
            lock = _open_lock(place, uid)
            if lock is None:
                continue
            number += 1
            taken.callback(os.close, lock)
            with storage_faults("locking", place / LOCKS):
                try:
                    # do not wait: there are other accounts, and a gate may hold this one for an
                    # hour
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
                # programs that clean /tmp by age leave a young file alone
                os.utime(lock)
        if not number:
            raise RunError(
                "cannot lock the training's account: "
                f"{', '.join(map(str, places))} are missing or read-only",
                hint="Give the gate's machine or container a writable /tmp.",
            )
        _held[uid] = taken.pop_all()
    return True


def release_uid(uid: int) -> None:
    """Release an account; does nothing if this process does not hold it."""
    held = _held.pop(uid, None)
    if held is not None:
        held.close()


def _open_lock(place: Path, uid: int) -> int | None:
    """Return a descriptor of an account's lock file, or None where a training can leave no file."""
    try:
        shared = os.open(place, trees.FOLDER_FLAGS)
    except (FileNotFoundError, NotADirectoryError):
        # not on this machine, or a link, behind which nothing is wiped
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
        # anybody can create this folder in /tmp, so it is trusted only after the check below
        os.mkdir(LOCKS, 0o700, dir_fd=shared)
    with trees.open_folder(LOCKS, within=shared) as locks:
        facts = os.fstat(locks)
        # another user could keep a file locked in it, or replace a file so that two gates get a
        # lock
        if facts.st_uid != os.geteuid() or facts.st_mode & OTHERS_MAY_WRITE:
            raise RunError(
                f"{path} is not private to the gate: its owner is account {facts.st_uid}",
                hint="Someone else created it, or opened it to others. Remove it; the gate "
                "creates it again.",
            )
        return os.open(str(uid), LOCK_FLAGS, 0o600, dir_fd=locks)
