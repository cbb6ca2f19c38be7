"""What a run reads in goes from memory when it ends, so that the next run cannot see it there.

A file that is in the page cache is read in microseconds, and one that is not in many more: a run
could read some files of those that all can read, and the next one time them. No refused call closes
that. The kernel counts each page, inode and name for the memory control group whose process brought
it in. Each run gets such a group, which is emptied behind it. What was in memory before stays:
another run's start is no slower, and nothing of the machine's is lost.

Neither a file system's name nor a kernel's version says whether that works: see `cache_left_by`.
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
# what was used twice needs a second look, and what a processor holds back a third
ROUNDS = 4
# enough that no reader takes it for the whole of a page that is there anyhow
PROOF_BYTES = 1024 * 1024
HINT = "Let the gate make memory control groups, or train without other runs on this machine."


class _Hierarchy(NamedTuple):
    """Where groups are made; `legacy` is the first version of the kernel's interface."""

    folder: Path
    legacy: bool


class CacheGroup:
    """The memory control group of one run, and of what it reads in."""

    # of this process: those that run, and those that ended beside one that still does
    _living: set[CacheGroup] = set()  # noqa: RUF012 - shared on purpose
    _ended: set[CacheGroup] = set()  # noqa: RUF012 - shared on purpose

    def __init__(self) -> None:
        """Raises `RunError` where kernel or container do not allow one."""
        hierarchy = _hierarchy()
        _remove_abandoned(hierarchy.folder)
        self._legacy = hierarchy.legacy
        # two gates in namespaces of their own may have one number, and both count from 0
        own = f"{_process_namespace()}-{os.getpid()}-{secrets.token_hex(8)}"
        self._folder = hierarchy.folder / f"{PREFIX}{own}"
        try:
            self._folder.mkdir()
        except OSError as error:
            raise _cannot("make a memory control group", error) from error
        self._living.add(self)

    @property
    def door(self) -> Path:
        """The file in which a process writes 0 to join."""
        return self._folder / PROCESSES

    def forget(self) -> None:
        """Empty it, when no process is left in it.

        What another run uses at this moment stays until that ends. Raises `RunError` where the
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
                # one that is still mapped somewhere keeps it until then
                with suppress(OSError):
                    ended._folder.rmdir()  # noqa: SLF001 - of this class

    def _empty(self) -> None:
        for _ in range(ROUNDS):
            if self._legacy:
                (self._folder / "memory.force_empty").write_text("0")
            else:
                held = (self._folder / "memory.current").read_text().strip()
                with suppress(BlockingIOError):
                    # less than all came free, as ever: the group itself takes some
                    (self._folder / "memory.reclaim").write_text(held)
            if not self._clean_bytes():
                return

    def _clean_bytes(self) -> int:
        """Pages of files that could go; the kernel counts in batches, so this is about right."""
        rows = (self._folder / "memory.stat").read_text().splitlines()
        facts = {name: int(value) for name, _, value in (row.partition(" ") for row in rows)}
        # not `file`: that counts tmpfs too, whose pages are on the lists of anonymous memory
        held = facts["active_file"] + facts["inactive_file"]
        waiting = ("dirty", "writeback") if self._legacy else ("file_dirty", "file_writeback")
        return max(0, held - sum(facts[name] for name in waiting))


def new_proof(path: Path) -> None:
    """Write a file that is not in memory; raises `RunError` where it stays there."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, os.urandom(PROOF_BYTES))
        # what still waits to be written stays
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    if cache_left_by(path):
        raise RunError(f"what is in {path.parent} is always in memory", hint=HINT)


def cache_left_by(path: Path) -> int:
    """How many pages of a file are in memory."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        # private and writable: an address is given to nobody else
        with mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE) as seen:
            pages = -(-size // mmap.PAGESIZE)
            answer = ctypes.create_string_buffer(pages)
            start = ctypes.c_char.from_buffer(seen)
            try:
                words = (ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size))
                checked(library.mincore(*words, answer))
            finally:
                # a buffer that is still exported keeps the mapping from being closed (BufferError)
                del start
            return sum(page & 1 for page in answer.raw)


def _hierarchy() -> _Hierarchy:
    """Below the gate's own group where that can be, so that its limits hold for a run too.

    In the second version a group that has processes has no groups below it, so there it is the
    nearest group above that hands memory on.
    """
    own = dict(_own_groups())
    for row in Path("/proc/self/mountinfo").read_text().splitlines():
        # a dash ends the optional fields: see proc_pid_mountinfo(5), numbers 7 and 8
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
    """The controllers, and this process's group in the hierarchy of each (cgroups(7))."""
    for row in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, group = row.split(":", 2)
        yield from ((name, group) for name in controllers.split(","))


def _process_namespace() -> int:
    """Whose numbers of processes this process sees (pid_namespaces(7))."""
    return Path("/proc/self/ns/pid").stat().st_ino


def _remove_abandoned(folder: Path) -> None:
    """Those of a gate that was killed; one that has a process refuses.

    Of another namespace nothing is known: a number there may be of a gate that lives.
    """
    for path in folder.glob(f"{PREFIX}{_process_namespace()}-*-*"):
        number = path.name.removeprefix(PREFIX).split("-")[1]
        if not Path("/proc", number).exists():
            with suppress(OSError):
                path.rmdir()


def _cannot(what: str, error: OSError) -> RunError:
    reason = error.strerror or errno.errorcode.get(error.errno or 0, "")
    return RunError(f"the gate cannot {what}: {safe_line(reason)}", hint=HINT)
