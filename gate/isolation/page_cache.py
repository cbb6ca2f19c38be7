"""Removes from memory what a run has read, so that the next run cannot tell which files it read.

A file in the page cache is read in microseconds, and any other file takes far longer. So a run
could read a chosen few of the files that everybody can read, and the next run could time them. No
refused system call closes this channel. The kernel charges each page, inode and name to the memory
control group of the process that loaded it. Each run therefore gets such a group, and the gate
empties it after the run. What was in memory before the run stays there. So other runs start no
slower, and the machine loses nothing.

Neither the name of a file system nor the kernel's version shows whether this works, so it is
tested: see `cache_left_by`.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gate.errors import RunError
from gate.isolation.kernel_calls import checked, library
from gate.text.untrusted_text import safe_line

PREFIX = "repro-gate-"
PROCESSES = "cgroup.procs"
# pages that were used twice need a second round, and pages that a processor holds back a third
ROUNDS = 4
# large enough that a reader notices it; a few pages could be in memory by chance
PROOF_BYTES = 1024 * 1024
HINT = "Let the gate make memory control groups, or train without other runs on this machine."


class _Hierarchy(NamedTuple):
    """The folder where groups are created; `legacy` is version 1 of the kernel's interface."""

    folder: Path
    legacy: bool


class CacheGroup:
    """The memory control group of one run, which counts all that the run loads into memory."""

    # the groups of this process: of running runs, and of runs that ended beside one still running
    _living: set[CacheGroup] = set()  # noqa: RUF012 - shared on purpose
    _ended: set[CacheGroup] = set()  # noqa: RUF012 - shared on purpose

    def __init__(self) -> None:
        """Create a group; raises `RunError` where the kernel or the container forbids it."""
        hierarchy = _hierarchy()
        _remove_abandoned(hierarchy.folder)
        self._legacy = hierarchy.legacy
        # two gates in different PID namespaces can have the same number, so a random part is needed
        own = f"{_process_namespace()}-{os.getpid()}-{secrets.token_hex(8)}"
        self._folder = hierarchy.folder / f"{PREFIX}{own}"
        try:
            self._folder.mkdir()
        except OSError as error:
            raise _cannot("make a memory control group", error) from error
        self._living.add(self)

    @property
    def door(self) -> Path:
        """The file into which a process writes 0 to join the group."""
        return self._folder / PROCESSES

    def forget(self) -> None:
        """Empty the group after its last process has ended.

        What another run uses at this moment stays until that run ends. Raises `RunError` where the
        kernel refuses.
        """
        self._living.discard(self)
        self._ended.add(self)
        for ended in tuple(self._ended):
            try:
                ended._empty()  # noqa: SLF001 - of this class
            except OSError as error:
                raise _cannot("empty a memory control group", error) from error
            if not self._living:
                self._ended.discard(ended)
                # a group whose pages are still mapped somewhere cannot be removed until they are
                # not
                with suppress(OSError):
                    ended._folder.rmdir()  # noqa: SLF001 - of this class

    def _empty(self) -> None:
        for _ in range(ROUNDS):
            if self._legacy:
                (self._folder / "memory.force_empty").write_text("0")
            else:
                held = (self._folder / "memory.current").read_text().strip()
                with suppress(BlockingIOError):
                    # EAGAIN, because less than all was freed, as always: the group itself uses some
                    # memory
                    (self._folder / "memory.reclaim").write_text(held)
            if not self._clean_bytes():
                return

    def _clean_bytes(self) -> int:
        """Return the bytes of file pages that could be dropped.

        The number is approximate, because the kernel counts in batches.
        """
        rows = (self._folder / "memory.stat").read_text().splitlines()
        facts = {name: int(value) for name, _, value in (row.partition(" ") for row in rows)}
        # not `file`: it includes tmpfs, whose pages are on the lists of anonymous memory
        held = facts["active_file"] + facts["inactive_file"]
        waiting = ("dirty", "writeback") if self._legacy else ("file_dirty", "file_writeback")
        return max(0, held - sum(facts[name] for name in waiting))


def new_proof(path: Path) -> None:
    """Write a test file and drop it from memory; raises `RunError` if it stays in memory."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, os.urandom(PROOF_BYTES))
        # the kernel drops only pages that are written back
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    if cache_left_by(path):
        raise RunError(f"what is in {path.parent} is always in memory", hint=HINT)


def cache_left_by(path: Path) -> int:
    """Return how many pages of a file are in memory."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        # private, and writable in memory: `from_buffer` accepts no read-only buffer
        with mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE) as seen:
            pages = -(-size // mmap.PAGESIZE)
            answer = ctypes.create_string_buffer(pages)
            start = ctypes.c_char.from_buffer(seen)
            try:
                words = (ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size))
                checked(library.mincore(*words, answer))
            finally:
                # the mapping cannot be closed while a buffer is exported from it (BufferError)
                del start
            return sum(page & 1 for page in answer.raw)


def _hierarchy() -> _Hierarchy:
    """Return the folder in which to create groups.

    It is the gate's own group where possible, so that its limits hold for a run too. In version 2 a
    group with processes cannot have controlled subgroups. There it is the nearest group above that
    delegates memory. Raises `RunError` if there is none.
    """
    own = dict(_own_groups())
    for row in Path("/proc/self/mountinfo").read_text().splitlines():
        # a dash ends the optional fields: see fields 7 and 8 in proc_pid_mountinfo(5)
        about, _, facts = row.partition(" - ")
        kind, _, options = facts.split(" ")[:3]
        root, place = about.split(" ")[3:5]
        legacy = kind == "cgroup" and "memory" in options.split(",")
        if not legacy and kind != "cgroup2":
            continue
        group = own.get("memory" if legacy else "", "/")
        below = Path(group).relative_to(root) if Path(group).is_relative_to(root) else Path()
        top = Path(place)
        folders = [folder for folder in (top / below, *(top / below).parents) if folder.is_dir()]
        for folder in (candidate for candidate in folders if candidate.is_relative_to(top)):
            if legacy or "memory" in (folder / "cgroup.subtree_control").read_text().split():
                return _Hierarchy(folder, legacy)
    raise RunError("no memory control group can be made here", hint=HINT)


def _own_groups() -> Iterator[tuple[str, str]]:
    """Yield each controller and this process's group in its hierarchy (cgroups(7))."""
    for row in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, group = row.split(":", 2)
        yield from ((name, group) for name in controllers.split(","))


def _process_namespace() -> int:
    """Return the id of this process's PID namespace (pid_namespaces(7))."""
    return Path("/proc/self/ns/pid").stat().st_ino


def _remove_abandoned(folder: Path) -> None:
    """Remove the empty groups of killed gates; the kernel refuses to remove one with processes.

    Groups of other PID namespaces are kept: a number there may be of a gate that still lives.
    """
    for path in folder.glob(f"{PREFIX}{_process_namespace()}-*-*"):
        number = path.name.removeprefix(PREFIX).split("-")[1]
        if not Path("/proc", number).exists():
            with suppress(OSError):
                path.rmdir()


def _cannot(what: str, error: OSError) -> RunError:
    reason = error.strerror or errno.errorcode.get(error.errno or 0, "")
    return RunError(f"the gate cannot {what}: {safe_line(reason)}", hint=HINT)
