"""Declared data on its way into the trainings: where it lies, what was listed of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from gate.settings.data import DataKind, FetchSettings, Verify


class ListedFile(NamedTuple):
    """A regular file of a data set; `name` is relative, as the file system has it.

    `sha256` is empty where a sample left it out. `stamp` is device, inode, and the times of change
    of content and of the inode, in nanoseconds: what tells that a file was touched meanwhile.
    """

    name: str
    size_bytes: int
    sha256: str
    stamp: tuple[int, int, int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """All files of a data set in the order of their names' bytes.

    Of a data set that is one file it holds that file, under the name `""`. `unreadable` are names
    of files and folders that another account may not read, the first few; folders end with a slash.
    """

    files: tuple[ListedFile, ...]
    verify: Verify
    unreadable: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Of all files together."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, kw_only=True, slots=True)
class CopiedFile:
    """A file that each run gets a copy of: from where, and to which path of the tree."""

    source: Path
    place: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchSources:
    """Where data may be fetched from and kept, as the commit that decides says.

    `dvc_config` and `lfs_config` are its `.dvc/config` and `.lfsconfig`, empty for none. With
    `clone_is_trusted`, as for a call without a base commit, what stands beside them in the clone
    counts too. What is at, in or around one of `closed` is no data: the training must not see it.
    """

    settings: FetchSettings
    dvc_config: bytes = b""
    lfs_config: bytes = b""
    clone_is_trusted: bool = False
    closed: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchedData:
    """Data on this machine, whole: a file or folder at `source`, or files to copy.

    `place` is the path from the repository's root at which the training finds it; empty for one
    below `$REPRO_GATE_DATA`. `origin` is for readers.
    """

    name: str
    kind: DataKind
    origin: str
    place: str = ""
    source: Path | None = None
    copies: tuple[CopiedFile, ...] = ()


MAX_NAME: Final = 100
# what YAML takes for a text between brackets without quotation marks
PLAIN: Final = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./+-]*\Z")


def data_names(paths: Iterable[str]) -> dict[str, str]:
    """A name below `$REPRO_GATE_DATA` for each path: its last part, numbered where two are one."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for path in paths:
        last = path.rstrip("/").rpartition("/")[2]
        plain = re.sub(r"[^A-Za-z0-9._-]", "-", last)[: MAX_NAME - 4].lstrip("._-") or "data"
        name, number = plain, 1
        while name.casefold() in taken:
            number += 1
            name = f"{plain}-{number}"
        taken.add(name.casefold())
        names[path] = name
    return names


def entries_for(names: dict[str, str]) -> str:
    """The line of `repro-gate.yml` that declares these paths under these names."""
    entries = (f"{{path: {_written(path)}, as: {name}}}" for path, name in names.items())
    return f"data: [{', '.join(entries)}]"


def entry_at(path: str, place: str) -> str:
    """The same for a path of the machine, at the place where an unmodified script looks for it."""
    return f"data: [{{path: {_written(path)}, at: {_written(place)}}}]"


def entry_of_pointer(kind: str, path: str) -> str:
    """The same for a pointer in the tree; `kind` is `dvc` or `lfs`."""
    return f"data: [{{{kind}: {_written(path)}}}]"


def names_entry(hint: str) -> bool:
    """Whether a hint says what to declare."""
    return "`data: [" in hint


def _written(path: str) -> str:
    plain = path.rstrip("/") or path
    return plain if PLAIN.match(plain) else json.dumps(plain)
