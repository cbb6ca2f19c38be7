"""The repository, read without running anything that it configures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Protocol

from gate.system.git.changes import Change
from gate.system.git.folder_commit import FolderCommit


class Git(Protocol):
    """The repository, read without running anything that it configures."""

    def top_level(self) -> Path:
        """The root of the work tree."""
        ...

    def resolve(self, reference: str) -> str:
        """The full hash of a commit."""
        ...

    def changed_files(self) -> tuple[str, ...]:
        """Paths that differ from HEAD, untracked files included, ignored ones left out."""
        ...

    def untracked(self) -> tuple[str, ...]:
        """What is new and not ignored; a folder of it stands there once, with a slash behind."""
        ...

    def visible_files(self) -> tuple[str, ...]:
        """Paths of all files of the work tree, tracked or new, ignored ones left out."""
        ...

    def ignored(self) -> tuple[str, ...]:
        """What lies in the work tree and is ignored, in the same form."""
        ...

    def merge_base(self, first: str, second: str) -> str | None:
        """The commit that two lines of work share last, None where this clone knows of none."""
        ...

    def changed_between(self, first: str, second: str) -> tuple[str, ...]:
        """The sorted paths of the files that are not the same in two commits."""
        ...

    def changed_lines(self, first: str, second: str) -> Change:
        """The hunks between two commits, a bounded number of them."""
        ...

    def read_file(self, commit: str, path: str) -> bytes | None:
        """A file of a commit, or None when it has none there."""
        ...

    def read_folder(
        self, commit: str, path: str, *, max_files: int, max_bytes: int
    ) -> Mapping[str, bytes] | None:
        """The regular files of a commit's folder by name, or None when it has nothing there."""
        ...

    def python_lines(self, commit: str, *, max_files: int, max_bytes: int) -> dict[str, int]:
        """How many lines each Python file of a commit has; beyond the limits a file is left out."""
        ...

    def folder_history(self, folder: str, *, max_commits: int) -> tuple[FolderCommit, ...]:
        """The newest commits before HEAD that changed a file of a folder, newest first."""
        ...

    def export_commit(self, commit: str, target: Path) -> str:
        """Write every file of a commit below `target`; return the tree's digest."""
        ...

    def write_source(self, commit: str, target: BinaryIO) -> None:
        """Write a commit, its trees and its blobs as one pack of git, the same bytes every time."""
        ...

    def export_work_tree(self, target: Path) -> str:
        """Write tracked and untracked, not ignored files as they are now; return the digest."""
        ...

    def credentials_left(self) -> tuple[str, ...]:
        """Names of the keys of the clone's configuration that hold a credential."""
        ...
