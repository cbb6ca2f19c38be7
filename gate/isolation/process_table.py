"""Who runs on this machine, and ending all of a family: read from /proc, asked of the kernel.

A process group is not enough to leave nothing behind: `torchrun` gives each worker a session of its
own, and a daemon leaves the group on purpose. Where there is no /proc these functions find nobody,
and the group is all there is.
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
# In this order, see proc_pid_status(5). A line's end in a program's name is written as two letters.
STATUS: Final = re.compile(
    rb"\nState:\t(\w).*?\nPPid:\t(\d+)\n.*?\nUid:\t([\d\t]+)\n.*?\nThreads:\t(\d+)\n", re.DOTALL
)
STATUS_BYTES: Final = 64 * 1024
SHELL = "/bin/sh"
# -1 is every process that the sender may signal (kill(2)); the test before it keeps root from it.
KILL_ALL = 'test "$(id -u)" = "$1" || exit 9; kill -KILL -1 || :'
# (uid_t) -1 means "no change", and is positive or not by how one reads it
ACCOUNT_LIMIT = 2**31 - 1
PAUSE_SECONDS = 0.02
SENDER_SECONDS = 0.4
# linux/prctl.h
PR_GET_DUMPABLE = 3
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
# helpers of the gate's own, and trainings that are known by their view: what lives beside others.
# The code that starts one adds it, and removes it when its end is known.
apart: Final[set[int]] = set()
# one entry for each body of `closed_memory` that runs: what the switch was before the first
_closed: Final[list[int]] = []
_closing: Final = threading.Lock()


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessFacts:
    """One row of /proc; `uids` are the real, effective, saved and file system ids."""

    pid: int
    parent: int
    uids: frozenset[int]
    ended: bool


def processes() -> Iterator[ProcessFacts]:
    """Every process that can be seen, those that ended and wait for their parent included."""
    try:
        names = os.listdir(PROC)  # noqa: PTH208 - see _status
    except OSError:
        return
    for name in filter(str.isdecimal, names):
        try:
            yield _facts(int(name), _status(name))
        except OSError:
            # it may end between the listing and the reading
            continue


def _status(pid: str) -> bytes:
    """Without an object for each path: a table has hundreds of rows, and is read for each run."""
    descriptor = os.open(f"{PROC}/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, STATUS_BYTES)
    finally:
        os.close(descriptor)


def _facts(pid: int, status: bytes) -> ProcessFacts:
    """Read `status`, not the owner of the folder: a process can make that one root."""
    match = STATUS.search(status)
    if match is None:
        raise OSError(errno.EIO, f"no status of process {pid}")
    state, parent, uids, threads = match.groups()
    # the main thread may have ended while others go on: that process lives
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
    """The living children of `root`, their children, and so on, in one reading of the table.

    A process that is set `apart` is left out, with all that come of it: no training made it.
    """
    table = tuple(row for row in _table(rows) if row.pid not in apart)
    family = {root}
    # by repeated passes over one reading: parents need not stand before their children
    while new := {row.pid for row in table if row.parent in family} - family:
        family |= new
    return frozenset(row.pid for row in table if row.pid in family and not row.ended) - {root}


def holds(pid: int, prefix: str) -> bool:
    """Whether a process has a file open whose path begins so; False where that cannot be seen."""
    with suppress(OSError):
        for entry in (PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                if str(entry.readlink()).startswith(prefix):
                    return True
    return False


class View:
    """The mount namespace that a process is in, held open: the kernel gives free numbers again."""

    def __init__(self, pid: int) -> None:
        """Of a process that has ended there is none, and nobody else is in it."""
        self._held: int | None = None
        with suppress(OSError):
            self._held = os.open(_view_file(pid), os.O_RDONLY | os.O_CLOEXEC)

    def members(self, rows: Iterable[ProcessFacts]) -> frozenset[int]:
        """Those of these processes that live in it."""
        if self._held is None:
            return frozenset()
        own = os.fstat(self._held).st_ino
        return frozenset(row.pid for row in rows if not row.ended and _view(row.pid) == own)

    def close(self) -> None:
        """Nobody is looked for any more."""
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
    """The living processes that hold `uid` in any of their four ids, in one reading."""
    return frozenset(row.pid for row in _table(rows) if uid in row.uids and not row.ended)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that it can be found."""
    process_control(PR_SET_CHILD_SUBREAPER, 1)


@contextmanager
def closed_memory() -> Iterator[None]:
    """Let no process read this one's memory, environment or descriptors while the body runs.

    That matters most where the training has the gate's own account; root keeps its ways. Bodies of
    several threads may overlap.
    """
    with _closing:
        if not _closed:
            # then /proc/PID belongs to root, and ptrace of another process
            # of this account is refused (PR_SET_DUMPABLE in prctl(2))
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
    """What prctl(2) answers; -1 where it refuses, or where the system has none."""
    call = getattr(ctypes.CDLL(None), "prctl", None)
    arguments = [ctypes.c_ulong(number) for number in (value, 0, 0, 0)]
    return -1 if call is None else int(call(option, *arguments))


def kill(pids: Iterable[int]) -> None:
    """SIGKILL; one that is gone already, or may not be touched, is left to the next look."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def require_other_account(account: Credentials) -> None:
    """Refuse root, the gate's own account and the id that means "no change" to the kernel.

    Everything that runs under the account will be killed. Raises `RunError`.
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
    """SIGKILL to every process of an account in one call, so that none can fork its way out.

    The sender runs under that account: -1 means "all that I may signal", itself left out. It asks
    who it is first: sent by root, the same call would end the machine. False when it could not
    send, because one of those processes was faster or there is no shell.
    """
    require_other_account(account)
    with suppress(OSError, subprocess.TimeoutExpired):
        sent = subprocess.run(
            # a single call of the kernel: processes that are listed and killed one by one can
            # outrun it by forking
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
    """Strike until `find` finds nobody; who is left after `seconds` is the answer."""
    deadline = time.monotonic() + seconds
    while (pids := find()) and time.monotonic() < deadline:
        strike(pids)
        time.sleep(PAUSE_SECONDS)
    return pids


def reap(*, but: frozenset[int]) -> None:
    """Take leave of adopted children that ended, so that they do not stay in the table."""
    ended = [row.pid for row in processes() if row.ended and row.parent == os.getpid()]
    for pid in set(ended) - but - apart:
        with suppress(ChildProcessError):
            # only those that ended, by number: waiting for any child would take one that Popen
            # waits for
            os.waitpid(pid, os.WNOHANG)
