"""What a tree of git holds: its entries read, their paths and modes judged."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from gate.edges.safe_text import safe_line
from gate.errors import RepositoryError

LINK = "120000"
SUBMODULE = "160000"
PERMISSIONS = {"100644": 0o644, "100664": 0o644, "100755": 0o755}


def plain_mode(permissions: int) -> str:
    """The mode that git gives a regular file: executable by its owner or not."""
    return "100755" if permissions & stat.S_IXUSR else "100644"


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeEntry:
    """A file of a commit; `size` is None for what is no blob or is not here."""

    path: str
    mode: str
    object_id: str
    size: int | None


def parse_entries(listing: bytes) -> tuple[TreeEntry, ...]:
    """Read what `git ls-tree -z -l` prints; names that are not UTF-8 survive as surrogates."""
    return tuple(_entry(row) for row in listing.split(b"\0") if row)


def _entry(row: bytes) -> TreeEntry:
    facts, path = row.split(b"\t", 1)
    mode, _, object_id, size = facts.decode("ascii").split()
    return TreeEntry(
        path=os.fsdecode(path),
        mode=mode,
        object_id=object_id,
        size=int(size) if size.isdecimal() else None,
    )


def check_path(path: str) -> str:
    """Refuse a path that would leave the folder it is written into, or pose as git's own."""
    parts = path.split("/")
    if any(part in {"", ".", ".."} or part.lower() == ".git" for part in parts):
        raise unsafe_path(path)
    return path


def unsafe_path(path: str) -> RepositoryError:
    """The error for a path that could write outside the folder it is meant for."""
    return RepositoryError(
        f"the repository holds a file with an unsafe path: {safe_line(path)}",
        hint="Remove it from the commit; git itself never makes such a name.",
    )


def submodule(path: str) -> RepositoryError:
    """The error for a repository inside the repository."""
    return RepositoryError(
        f"{safe_line(path)} is a repository of its own (a submodule)",
        hint="Put its files into the repository itself, or install it as a package; an untracked "
        "one belongs into .gitignore.",
    )
