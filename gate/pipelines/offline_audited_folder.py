"""The files of a folder that is audited: listed within bounds, read within one budget of bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from gate.errors import GateError, StorageError
from gate.system.files.port import Files
from gate.system.git.port import Git

MAX_NAMES: Final = 20_000
MAX_DEPTH: Final = 12
MAX_ALL_BYTES: Final = 16 * 1024 * 1024
# a folder of packages that somebody installed, or that a tool keeps for itself
SKIPPED: Final = frozenset(("node_modules", "__pycache__", "site-packages"))
ENVIRONMENT_MARK: Final = "pyvenv.cfg"


@dataclass(kw_only=True, slots=True)
class Look:
    """One look at a folder; what was read counts against one budget of bytes."""

    top: Path
    files: Files
    left: int = MAX_ALL_BYTES
    names: list[str] = field(default_factory=list)
    incomplete: str = ""

    def read(self, name: str, limit: int) -> bytes | None:
        """A regular file below the folder; None for anything else and for what is too large."""
        # settings of somebody else may name any path
        if not is_below(name):
            return None
        with suppress(StorageError):
            self.files.refuse_links(self.top / name, below=self.top)
            data = self.files.read_bytes(self.top / name, max_bytes=min(limit, self.left))
            self.left -= len(data)
            return data
        return None


def is_below(name: str) -> bool:
    """Whether a path stays in the folder that it is relative to."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def list_files(look: Look, git: Git | None) -> tuple[str, ...]:
    """Fill in the names of the files; what is changed since the commit, where git can tell."""
    if git is not None:
        with suppress(GateError):
            names = git.visible_files()
            look.names = list(names[:MAX_NAMES])
            if len(names) > MAX_NAMES:
                look.incomplete = f"Of {len(names):,} files the first {MAX_NAMES:,} were looked at."
            return git.changed_files()
    look.names = sorted(_walked(look))
    return ()


def _walked(look: Look) -> Iterator[str]:
    """The files below a folder that git knows nothing of, the shallowest first."""
    waiting = deque([("", 0)])
    seen = 0
    while waiting:
        folder, depth = waiting.popleft()
        try:
            names = look.files.list_names(look.top / folder, max_names=MAX_NAMES)
        except StorageError:
            look.incomplete = "A folder could not be listed, or holds too many files."
            continue
        if folder and ENVIRONMENT_MARK in names:
            continue
        for name in names:
            if name.startswith(".git") and name != ".github":
                continue
            seen += 1
            if seen > MAX_NAMES or depth > MAX_DEPTH:
                look.incomplete = (
                    f"More than {MAX_NAMES:,} files, or more than {MAX_DEPTH} folders deep: the "
                    "rest was not looked at."
                )
                break
            path = f"{folder}/{name}" if folder else name
            if look.files.is_folder(look.top / path):
                if name not in SKIPPED:
                    waiting.append((path, depth + 1))
            else:
                yield path


def with_folders(names: list[str]) -> Iterator[str]:
    """Each file, and each folder above it."""
    for name in names:
        yield name
        yield from (parent.as_posix() for parent in PurePosixPath(name).parents)
