"""Reading that trusts nothing and writing that loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Protocol


class Files(Protocol):
    """Reading that trusts nothing and writing that loses nothing."""

    def read_bytes(self, path: Path, *, max_bytes: int) -> bytes:
        """A regular file's content, no link followed; `StorageError` beyond the limit."""
        ...

    def open_binary(self, path: Path, *, max_bytes: int) -> AbstractContextManager[BinaryIO]:
        """Open a regular file for reading, no link followed."""
        ...

    def exists(self, path: Path) -> bool:
        """Whether something is there, a link included."""
        ...

    def is_folder(self, path: Path) -> bool:
        """Whether a real folder is there; a link to one is none."""
        ...

    def link_target(self, path: Path) -> str | None:
        """What a symbolic link says; None for anything else."""
        ...

    def list_names(self, folder: Path, *, max_names: int) -> tuple[str, ...]:
        """The names in a folder, sorted; empty when there is not a folder."""
        ...

    def write_bytes(self, path: Path, data: bytes) -> None:
        """Write through a temporary file, so that a full disk leaves the old content."""
        ...

    def write_new(self, path: Path, data: bytes) -> None:
        """Make a file, its folders as needed; `StorageError` when something has its name."""
        ...

    def append_bytes(self, path: Path, data: bytes) -> None:
        """Add to the end of a regular file, made when it is not there; no link followed."""
        ...

    def refuse_brought_link(self, path: Path) -> None:
        """`StorageError` when a path is a link below a checkout, or leads through one."""
        ...

    def refuse_links(self, path: Path, *, below: Path) -> None:
        """`StorageError` when a path below a folder is a link or leads through one."""
        ...

    def owner(self, path: Path) -> tuple[int, int]:
        """The user and group that own something, a link itself."""
        ...

    def replacing(self, path: Path) -> AbstractContextManager[BinaryIO]:
        """A new file that takes the place of `path` when the body ends well, and else is gone."""
        ...

    def held_folder(self, path: Path) -> AbstractContextManager[None]:
        """Have a folder, made if need be, for this process alone while the body runs.

        `SettingsError` when another process has it, or a file has its name.
        """
        ...

    def fresh_folder(self, path: Path, *, mode: int = 0o755) -> None:
        """Make an empty folder, removing what was there."""
        ...

    def copy_tree(self, source: Path, target: Path, *, max_bytes: int | None = None) -> None:
        """Copy a folder of regular files and links, links as links.

        `StorageError` when its files hold more than `max_bytes` together.
        """
        ...

    def keep_only(self, folder: Path, keep: Callable[[str], bool]) -> None:
        """Remove each file of a copy that `keep` refuses by its path, and then empty folders."""
        ...

    def let_read(self, path: Path, *, gid: int | None = None) -> None:
        """Let every account read a file or a folder, or a group a folder of one account."""
        ...

    def copy_file(self, source: Path, target: Path, *, max_bytes: int) -> str:
        """Copy one regular file, its folders as needed, no link followed; the copy's SHA-256."""
        ...

    def link(self, path: Path, target: Path) -> None:
        """Make a symbolic link at a path that is free, its folders as needed."""
        ...

    def short_link(self, target: Path, *, for_others: bool) -> Path | None:
        """A short path that leads to a folder, always the same one; None where there is none.

        `for_others`: another account has to follow it.
        """
        ...

    def drop_short_link(self, target: Path) -> None:
        """Remove it."""
        ...

    def move_file(self, source: Path, target: Path) -> None:
        """Give a file another name on the same disk; what was there is replaced."""
        ...

    def byte_code(self, module: Path) -> bytes:
        """The byte-code of a Python module, as a file beside it would hold it."""
        ...

    def set_aside(self, path: Path, target: Path) -> None:
        """Give a folder another name until it is removed with others, without its large files."""
        ...

    def remove_tree(self, path: Path) -> None:
        """Remove a folder, whatever its permissions."""
        ...

    def tree_digest(self, folder: Path) -> str:
        """The digest of an exported tree as it lies on disk now."""
        ...

    def give_to(self, path: Path, uid: int, gid: int) -> None:
        """Make another account the owner of a folder and all that is in it."""
        ...
