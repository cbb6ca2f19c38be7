"""Accounts for trainings: held by one gate at a time, and nothing left of them.

When a run returns its account, all its processes are ended and its files are wiped from the
folders that every account may write in. So the lock is in those very folders: where two gates wipe
one folder, in whatever containers they are, they find each other's lock there. `/run` would be each
container's own, and so would an abstract socket where `/dev/shm` and System V objects are shared
(`--ipc=host`); besides, a training could bind every such name, as it could lock any file that it
may open. These files are in a folder of root's that no other account may enter.

It is a `flock`: the kernel lets go of it when the process is gone, however it ended. Descriptors
are not handed to programs that the gate starts, so a training that lives on holds nothing.

Two containers that share the table of processes and not one of the folders see only the processes.
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

# where every account may write files, in an image of Debian's or on a host
FILE_FOLDERS = tuple(
    Path(name)
    for name in ("/tmp", "/var/tmp", "/dev/shm", "/run/lock")  # noqa: S108 - wiped, not used
)
# the last holds message queues
SHARED_FOLDERS = (*FILE_FOLDERS, Path("/dev/mqueue"))
# ipcrm(1)'s switches for the three kinds of System V objects, by the name of their table
SYSTEM_V = {"shm": "--shmem-id", "sem": "--semaphore-id", "msg": "--queue-id"}
IPCRM = "/usr/bin/ipcrm"
REMOVAL_SECONDS = 10.0


def remove_residue(account: Credentials, folders: tuple[Path, ...] = SHARED_FOLDERS) -> None:
    """Remove every entry of the account's in the shared folders, and its System V objects.

    Call it when no process of that account lives. No link is followed, nothing of another account
    is touched. Raises `StorageError` or `RunError` when something stays.
    """
    require_other_account(account)
    for folder in folders:
        for entry in _entries_of(account.uid, folder):
            with storage_faults("removing", entry):
                # only after its processes are gone: nobody can put a link in the place of a folder
                # meanwhile
                trees.remove_tree(entry)
    _remove_system_v(account)


def _entries_of(uid: int, folder: Path) -> Iterator[Path]:
    """Entries that belong to `uid`, also in root's own folders that every account may write in.

    Not in those of a third account: it could put a link in the place of its folder meanwhile.
    """
    pending = [folder]
    while pending:
        current = pending.pop()
        # a link, gone meanwhile, or not on this machine
        gone = suppress(FileNotFoundError, NotADirectoryError)
        with gone, trees.open_folder(current) as descriptor, os.scandir(descriptor) as entries:
            for entry in entries:
                with gone:
                    facts = entry.stat(follow_symlinks=False)
                    # the entry's own owner: a folder of root's may hold files of everybody
                    if facts.st_uid == uid:
                        yield current / entry.name
                    elif _open_to_all(facts):
                        pending.append(current / entry.name)


def _open_to_all(facts: os.stat_result) -> bool:
    writable = bool(facts.st_mode & stat.S_IWOTH)
    return facts.st_uid == 0 and stat.S_ISDIR(facts.st_mode) and writable


def _remove_system_v(account: Credentials) -> None:
    """As that account: root in a container may not remove what is another's."""
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
    """Kind and number of every object that the account owns or made, from /proc/sysvipc."""
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
                # each table has its own name for its second column, the identity
                yield kind, numbers[1]


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
        number = 0
        for place in places:
            lock = _open_lock(place, uid)
            if lock is None:
                continue
            number += 1
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
        if not number:
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
        # another user's folder could hold a file that stays locked, or hand out two
        # locks
        if facts.st_uid != os.geteuid() or facts.st_mode & OTHERS_MAY_WRITE:
            raise RunError(
                f"{path} is not private to the gate: its owner is account {facts.st_uid}",
                hint="Someone else created it, or opened it to others. Remove it; the gate "
                "creates it again.",
            )
        return os.open(str(uid), LOCK_FLAGS, 0o600, dir_fd=locks)
