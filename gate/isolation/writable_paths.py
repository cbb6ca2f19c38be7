"""Files and folders that every account can write: a run could leave data there for the next."""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gate.isolation.residue import FILE_FOLDERS, SHARED_FOLDERS
from gate.system.files.trees import open_folder

MAX_ENTRIES = 50_000
# the kernel's own files; devices are no places
NOT_ENTERED = frozenset(map(Path, ("/proc", "/sys", "/dev")))
KINDS = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISFIFO)
GONE = suppress(FileNotFoundError)
EVERYWHERE = (*SHARED_FOLDERS, Path("/"))


@dataclass(frozen=True, kw_only=True, slots=True)
class WritablePaths:
    """What was found; `complete` is False when there were more entries than are looked at."""

    paths: tuple[Path, ...]
    complete: bool = True

    def below(self, folder: Path) -> bool:
        """Whether there may be one below a folder."""
        return not self.complete or any(path.is_relative_to(folder) for path in self.paths)


def find_writable_paths(
    tops: Iterable[Path], groups: Collection[int] = (), *, max_entries: int = MAX_ENTRIES
) -> WritablePaths:
    """Look below folders for what other accounts can reach and write; no link is followed.

    `groups` are those that the account has: what one of them can write is open to it as well.

    Left out are folders that `residue.py` empties after every run, and what it finds in them.
    Nearer ones are looked at first, so that a limit cuts off what lies deep.
    """
    look = _Look(max_entries, groups)
    # breadth first: what lies near the top is found by most programs
    pending = deque(dict.fromkeys(tops))
    while pending and look.seen <= max_entries:
        pending += look.inside(pending.popleft())
    return WritablePaths(paths=tuple(sorted(look.found)), complete=look.complete)


class _Look:
    """What was found so far."""

    def __init__(self, max_entries: int, groups: Collection[int]) -> None:
        self._groups = groups
        self.found: list[Path] = []
        self.seen = 0
        self.complete = True
        self._max_entries = max_entries
        self._emptied = {*FILE_FOLDERS, *SHARED_FOLDERS}

    def inside(self, folder: Path) -> list[Path]:
        """Judge what lies in a folder; the folders in it that are to be looked into."""
        further: list[Path] = []
        try:
            with open_folder(folder) as descriptor, os.scandir(descriptor) as entries:
                for entry in entries:
                    self.seen += 1
                    if self.seen > self._max_entries:
                        self.complete = False
                        break
                    with GONE:
                        facts = entry.stat(follow_symlinks=False)
                        if self._judge(folder / entry.name, facts, descriptor):
                            further.append(folder / entry.name)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            # gone meanwhile, or of a file system that keeps even root out
            pass
        except OSError:
            self.complete = False
        return further

    def _judge(self, path: Path, facts: os.stat_result, parent: int) -> bool:
        """Note a place that is open to all; whether it is a folder that is to be looked into."""
        if path in NOT_ENTERED or path in self._emptied:
            return False
        by_group = facts.st_gid in self._groups
        if _can_write(facts):
            if path.parent in self._emptied and _is_roots_folder(facts):
                self._emptied.add(path)
                return True
        elif not (by_group and _can_write(facts, by_group=True)):
            entered = stat.S_IXOTH | (stat.S_IXGRP if by_group else 0)
            return stat.S_ISDIR(facts.st_mode) and bool(facts.st_mode & entered)
        # permissions of a read-only file system open nothing
        if os.fstatvfs(parent).f_flag & os.ST_RDONLY:
            return stat.S_ISDIR(facts.st_mode)
        self.found.append(path)
        return False


def _can_write(facts: os.stat_result, *, by_group: bool = False) -> bool:
    """Whether every account can, or each of the file's group."""
    needed = stat.S_IWOTH | (stat.S_IXOTH if stat.S_ISDIR(facts.st_mode) else 0)
    mode = facts.st_mode >> 3 if by_group else facts.st_mode
    return any(kind(facts.st_mode) for kind in KINDS) and mode & needed == needed


def _is_roots_folder(facts: os.stat_result) -> bool:
    return facts.st_uid == 0 and stat.S_ISDIR(facts.st_mode)
