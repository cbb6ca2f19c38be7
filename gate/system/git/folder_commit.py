"""A commit that changed files of a folder, as the port to git tells it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderCommit:
    """A commit that changed files of a folder: their names below it, author and ISO 8601 date."""

    commit: str
    committed_at: str
    author: str
    names: tuple[str, ...]
