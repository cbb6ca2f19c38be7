"""Files and folders that every account can write: where a run could leave word for the next one."""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gate.edges.leftovers import FILE_FOLDERS, SHARED_FOLDERS
from gate.edges.trees import open_folder

MAX_ENTRIES = 50_000
# the kernel's own files; devices are no places
NOT_ENTERED = frozenset(map(Path, ("/proc", "/sys", "/dev")))
KINDS = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISFIFO)
EVERYWHERE = (*SHARED_FOLDERS, Path("/"))


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenPlaces:
    """What was found; `complete` is False when there were more entries than are looked at."""

    paths: tuple[Path, ...]
    complete: bool = True

    def below(self, folder: Path) -> bool:
        """Whether there may be one below a folder."""
        return not self.complete or any(path.is_relative_to(folder) for path in self.paths)


def find_open_places(tops: Iterable[Path], *, max_entries: int = MAX_ENTRIES) -> OpenPlaces:
    """Look below folders for what other accounts can reach and write; no link is followed.

    Left out are folders that `leftovers.py` empties after every run, and what it finds in them.
    Nearer ones are looked at first, so that a limit cuts off what lies deep.
    """
    pending = deque(dict.fromkeys(tops))
    emptied = set(FILE_FOLDERS) | set(SHARED_FOLDERS)
    found: list[Path] = []
    seen = 0
    while pending:
        folder = pending.popleft()
        gone = suppress(FileNotFoundError, NotADirectoryError, PermissionError)
        with gone, open_folder(folder) as descriptor, os.scandir(descriptor) as entries:
            for entry in entries:
                seen += 1
                if seen > max_entries:
                    return OpenPlaces(paths=tuple(sorted(found)), complete=False)
                path = folder / entry.name
                if path in NOT_ENTERED or path in emptied:
                    continue
                with gone:
                    facts = entry.stat(follow_symlinks=False)
                    if _others_can_write(facts) and folder in emptied and _is_roots(facts):
                        emptied.add(path)
                    elif _others_can_write(facts) and not _read_only(descriptor):
                        found.append(path)
                        continue
                    if stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_IXOTH:
                        pending.append(path)
    return OpenPlaces(paths=tuple(sorted(found)))


def _others_can_write(facts: os.stat_result) -> bool:
    needed = stat.S_IWOTH | (stat.S_IXOTH if stat.S_ISDIR(facts.st_mode) else 0)
    return any(kind(facts.st_mode) for kind in KINDS) and facts.st_mode & needed == needed


def _is_roots(facts: os.stat_result) -> bool:
    return facts.st_uid == 0 and stat.S_ISDIR(facts.st_mode)


def _read_only(descriptor: int) -> bool:
    return bool(os.fstatvfs(descriptor).f_flag & os.ST_RDONLY)
