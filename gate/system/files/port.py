"""The protocol of file access: reading trusts nothing, and writing loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Protocol


class Files(Protocol):
    """File access: reading trusts nothing, and writing loses nothing.

    Every fault is a `StorageError`. `LocalFiles` implements it; tests have another one.
    """

    def read_bytes(self, path: Path, *, max_bytes: int) -> bytes:
        """Read a regular file, following no link; raises `StorageError` above `max_bytes`."""
        ...

    def open_binary(self, path: Path, *, max_bytes: int) -> AbstractContextManager[BinaryIO]:
        """Open a regular file for reading, following no link."""
        ...

    def exists(self, path: Path) -> bool:
        """Return whether anything is at a path, even a dangling link."""
        ...

    def is_folder(self, path: Path) -> bool:
        """Return whether a real folder is at a path; a link to a folder does not count."""
        ...

    def link_target(self, path: Path) -> str | None:
        """Return the text of a symbolic link, or None for anything else."""
        ...

    def list_names(self, folder: Path, *, max_names: int) -> tuple[str, ...]:
        """Return the sorted names in a folder; empty if the folder does not exist."""
        ...

    def write_bytes(self, path: Path, data: bytes) -> None:
        """Write a file through a temporary one, so that a full disk leaves the old content."""
        ...

    def write_new(self, path: Path, data: bytes) -> None:
        """Make a file and its folders; raises `StorageError` if something has this name."""
        ...

    def append_bytes(self, path: Path, data: bytes) -> None:
        """Append to a regular file, or make it; follows no link."""
        ...

    def refuse_brought_link(self, path: Path) -> None:
        """Raise `StorageError` if a path is, or leads through, a link that a checkout contains."""
        ...

    def refuse_links(self, path: Path, *, below: Path) -> None:
        """Raise `StorageError` if a path is, or leads through, a link below a folder."""
        ...

    def owner(self, path: Path) -> tuple[int, int]:
        """Return the user and group that own the path, or a link itself."""
        ...

    def replacing(self, path: Path) -> AbstractContextManager[BinaryIO]:
        """Provide a new file that replaces `path` if the body succeeds, else is removed."""
        ...

    def held_folder(self, path: Path) -> AbstractContextManager[None]:
        """Make a folder if needed, and lock it for this process while the body runs.

        Raises `SettingsError` if another process has the lock, or if a file has this name.
        """
        ...

    def fresh_folder(self, path: Path, *, mode: int = 0o755) -> None:
        """Make an empty folder, removing anything that was there."""
        ...

    def copy_tree(self, source: Path, target: Path, *, max_bytes: int | None = None) -> None:
        """Copy a folder of regular files and links, keeping links as links.

        Raises `StorageError` if its files have more than `max_bytes` in total.
        """
        ...

    def keep_only(self, folder: Path, keep: Callable[[str], bool]) -> None:
        """Remove each file whose path `keep` rejects, and then empty folders; for copies only."""
        ...

    def let_read(self, path: Path, *, gid: int | None = None) -> None:
        """Make a file or a folder readable for all accounts, or a folder for one group."""
        ...

    def copy_file(self, source: Path, target: Path, *, max_bytes: int) -> str:
        """Copy a regular file, following no link, with new folders; return the copy's SHA-256."""
        ...

    def link(self, path: Path, target: Path) -> None:
        """Make a symbolic link and the folders above it; the path must not exist."""
        ...

    def short_link(self, target: Path, *, for_others: bool) -> Path | None:
        """Return a short path that links to a folder, the same each time; None if impossible.

        `for_others` means that another account has to follow the link.
        """
        ...

    def drop_short_link(self, target: Path) -> None:
        """Remove the link that `short_link` made."""
        ...

    def move_file(self, source: Path, target: Path) -> None:
        """Rename a file on the same disk, replacing what was there."""
        ...

    def byte_code(self, module: Path) -> bytes:
        """Return the byte code of a Python module, in the form of a `.pyc` file."""
        ...

    def set_aside(self, path: Path, target: Path) -> None:
        """Rename a folder for later removal together with others, without its large files."""
        ...

    def remove_tree(self, path: Path) -> None:
        """Remove a folder, whatever its permissions are."""
        ...

    def tree_digest(self, folder: Path) -> str:
        """Return the digest of an exported tree as it is on disk now."""
        ...

    def give_to(self, path: Path, uid: int, gid: int) -> None:
        """Make another account the owner of a folder and of everything in it."""
        ...
