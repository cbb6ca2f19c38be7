"""Finds the processes of this machine in /proc, and ends a whole family of them.

A process group is not enough to leave nothing behind: `torchrun` gives each worker its own session,
and a daemon leaves the group on purpose. Without /proc these functions find no process, and only
the group can be ended.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gate.errors import RunError
from gate.isolation.modes import Credentials

PROC = Path("/proc")
# The fields come in this order, see proc_pid_status(5). The kernel escapes a line feed in a
# program's name, so the name cannot forge a field.
STATUS: Final = re.compile(
    rb"\nState:\t(\w).*?\nPPid:\t(\d+)\n.*?\nUid:\t([\d\t]+)\n.*?\nThreads:\t(\d+)\n", re.DOTALL
)
STATUS_BYTES: Final = 64 * 1024
SHELL = "/bin/sh"
# -1 is every process that the sender may signal (kill(2)); the check keeps root from sending it
KILL_ALL = 'test "$(id -u)" = "$1" || exit 9; kill -KILL -1 || :'
# (uid_t) -1 means "no change"; read as a signed number it is negative, read as unsigned positive
ACCOUNT_LIMIT = 2**31 - 1
PAUSE_SECONDS = 0.02
SENDER_SECONDS = 0.4
# linux/prctl.h
PR_GET_DUMPABLE = 3
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
# The gate's own helpers, and trainings that are identified by their view: they live beside other
# processes. The code that starts one adds it, and removes it when its end is known.
apart: Final[set[int]] = set()
# one entry for each running body of `closed_memory`: the switch as it was before the first of them
_closed: Final[list[int]] = []
_closing: Final = threading.Lock()


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessFacts:
    """One row of /proc.

    `uids` are the real, effective, saved and file system ids. `ended` is True for a zombie whose
    threads have all ended.
    """

    pid: int
    parent: int
    uids: frozenset[int]
    ended: bool


def processes() -> Iterator[ProcessFacts]:
    """Yield every visible process, including ended ones that wait for their parent."""
    try:
        names = os.listdir(PROC)  # noqa: PTH208 - see _status
    except OSError:
        return
    for name in filter(str.isdecimal, names):
        try:
            yield _facts(int(name), _status(name))
        except OSError:
            # a process may end between the listing and the reading
            continue


def _status(pid: str) -> bytes:
    """Return the status file of a process.

    It uses plain descriptors instead of `Path` objects: a table has hundreds of rows and is read
    for each run.
    """
    descriptor = os.open(f"{PROC}/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, STATUS_BYTES)
    finally:
        os.close(descriptor)


def _facts(pid: int, status: bytes) -> ProcessFacts:
    """Parse the status file of a process; raises `OSError` if it has another form.

    The owner of the process's folder in /proc is not used: a process can make that root.
    """
    match = STATUS.search(status)
    if match is None:
        raise OSError(errno.EIO, f"no status of process {pid}")
    state, parent, uids, threads = match.groups()
    # the main thread may have ended while other threads go on: such a process is alive
    alone = int(threads) <= 1
    return ProcessFacts(
        pid=pid,
        parent=int(parent),
        uids=frozenset(map(int, uids.split())),
        ended=alone and state in b"ZX",
    )


def _table(rows: Iterable[ProcessFacts] | None) -> Iterable[ProcessFacts]:
    return processes() if rows is None else rows


def descendants(root: int, rows: Iterable[ProcessFacts] | None = None) -> frozenset[int]:
    """Return the living descendants of `root`, from one reading of the process table.

    A process in `apart` is left out with all its descendants, because no training started it.
    """
    table = tuple(row for row in _table(rows) if row.pid not in apart)
    family = {root}
    # repeat over the same rows until none is new: a parent need not come before its children
    while new := {row.pid for row in table if row.parent in family} - family:
        family |= new
    return frozenset(row.pid for row in table if row.pid in family and not row.ended) - {root}


def holds(pid: int, prefix: str) -> bool:
    """Return whether a process has a file open whose path has this prefix; False if unknown."""
    with suppress(OSError):
        for entry in (PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                if str(entry.readlink()).startswith(prefix):
                    return True
    return False


class View:
    """The mount namespace of a process.

    It is held open because the kernel reuses the numbers of namespaces that are gone.
    """

    def __init__(self, pid: int) -> None:
        """Open the view of a process; if the process has ended, the view has no members."""
        self._held: int | None = None
        with suppress(OSError):
            self._held = os.open(_view_file(pid), os.O_RDONLY | os.O_CLOEXEC)

    def members(self, rows: Iterable[ProcessFacts]) -> frozenset[int]:
        """Return the living processes among `rows` that are in this view."""
        if self._held is None:
            return frozenset()
        own = os.fstat(self._held).st_ino
        return frozenset(row.pid for row in rows if not row.ended and _view(row.pid) == own)

    def close(self) -> None:
        """Let go of the view; from now on it has no members."""
        if self._held is not None:
            os.close(self._held)
            self._held = None


def _view_file(pid: int) -> str:
    return f"{PROC}/{pid}/ns/mnt"


def _view(pid: int) -> int:
    try:
        return os.stat(_view_file(pid)).st_ino  # noqa: PTH116 - see _status
    except OSError:
        return 0


def owned_by(uid: int, rows: Iterable[ProcessFacts] | None = None) -> frozenset[int]:
    """Return the living processes that have `uid` among their four ids, from one reading."""
    return frozenset(row.pid for row in _table(rows) if uid in row.uids and not row.ended)


def adopt_orphans() -> None:
    """Make this process adopt every descendant whose parent ends, so that it can be found."""
    process_control(PR_SET_CHILD_SUBREAPER, 1)


@contextmanager
def closed_memory() -> Iterator[None]:
    """Keep other processes from reading this one's memory, environment or descriptors (rule T1).

    This matters most where the training runs under the gate's own account. Root can still read
    them. Bodies in several threads may overlap.
    """
    with _closing:
        if not _closed:
            # /proc/PID then belongs to root, and the kernel refuses ptrace by another process of
            # this account (PR_SET_DUMPABLE in prctl(2))
            before = process_control(PR_GET_DUMPABLE)
            process_control(PR_SET_DUMPABLE, 0)
        else:
            before = _closed[-1]
        _closed.append(before)
    try:
        yield
    finally:
        with _closing:
            _closed.pop()
            if not _closed:
                process_control(PR_SET_DUMPABLE, before)


def process_control(option: int, value: int = 0) -> int:
    """Return the answer of prctl(2), or -1 if it refuses or the system lacks it."""
    call = getattr(ctypes.CDLL(None), "prctl", None)
    arguments = [ctypes.c_ulong(number) for number in (value, 0, 0, 0)]
    return -1 if call is None else int(call(option, *arguments))


def kill(pids: Iterable[int]) -> None:
    """Send SIGKILL to each process; skip those that are gone or may not be signalled."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def require_other_account(account: Credentials) -> None:
    """Refuse an account that is root's, the gate's own, or the id that means "no change".

    Every process under the account will be killed, so it must not be one that anything else uses.
    Raises `RunError`.
    """
    own = {*os.getresuid(), *os.getresgid()}
    if any(
        not 0 < number < ACCOUNT_LIMIT or number in own
        for number in (account.uid, account.gid, *account.groups)
    ):
        raise RunError(
            f"account {account.uid}:{account.gid} is not allowed for a training",
            hint="Use an account that nothing else uses; the gate finds one by itself.",
        )


def kill_account(account: Credentials, *, sender: str = SHELL) -> bool:
    """Send SIGKILL to every process of an account in one call, so that none can fork its way out.

    A child under that account sends it to -1, "all that I may signal", which excludes the sender.
    The child first checks its user id, because the same call sent by root would end the machine.
    Return False if it could not be sent: a process of the account was faster, or there is no shell.
    """
    require_other_account(account)
    with suppress(OSError, subprocess.TimeoutExpired):
        sent = subprocess.run(
            # one system call: processes that are listed and killed one by one can outrun the killer
            # by forking
            (sender, "-c", KILL_ALL, "sh", str(account.uid)),
            user=account.uid,
            group=account.gid,
            extra_groups=(),
            env={"PATH": os.defpath},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=SENDER_SECONDS,
        )
        return sent.returncode == 0
    return False


def end_all(
    find: Callable[[], frozenset[int]], strike: Callable[[frozenset[int]], None], *, seconds: float
) -> frozenset[int]:
    """Call `strike` until `find` finds nobody; return who is left after `seconds`."""
    deadline = time.monotonic() + seconds
    while (pids := find()) and time.monotonic() < deadline:
        strike(pids)
        time.sleep(PAUSE_SECONDS)
    return pids


def reap(*, but: frozenset[int]) -> None:
    """Reap adopted children that have ended, except `but`, so that they leave the process table."""
    ended = [row.pid for row in processes() if row.ended and row.parent == os.getpid()]
    for pid in set(ended) - but - apart:
        with suppress(ChildProcessError):
            # by number, and only ended ones: waiting for any child would take one that Popen waits
            # for
            os.waitpid(pid, os.WNOHANG)
