"""Remove what an account left outside its run's folders: it could pass data to the next run."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gate.errors import RunError
from gate.isolation.modes import Credentials
from gate.isolation.process_table import PROC, require_other_account
from gate.system.files import trees
from gate.system.files.storage_faults import storage_faults

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
            continue
        columns = head.split()
        for row in rows:
            numbers = [int(word) for word in row.split()]
            facts = dict(zip(columns, numbers, strict=True))
            if uid in {facts["uid"], facts["cuid"]}:
                # each table has its own name for its second column, the identity
                yield kind, numbers[1]
