"""Records of declared data on its way into trainings, and the settings lines that declare it."""

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

    `sha256` is empty if sampling left the file out. `stamp` is (device, inode, mtime, ctime), with
    times in nanoseconds. A different stamp means that the file was touched.
    """

    name: str
    size_bytes: int
    sha256: str
    stamp: tuple[int, int, int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """All files of a data set, sorted by the bytes of their names.

    A data set that is a single file has this file under the name `""`. `unreadable` has the names
    of the first few files and folders that another account may not read; folders end with a slash.
    """

    files: tuple[ListedFile, ...]
    verify: Verify
    unreadable: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """The size of all files together."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, kw_only=True, slots=True)
class CopiedFile:
    """A file that each run gets a copy of: its source, and its path in the tree."""

    source: Path
    place: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchSources:
    """Where data may be fetched from and stored, according to the deciding commit.

    `dvc_config` and `lfs_config` are this commit's `.dvc/config` and `.lfsconfig`, empty if
    missing. With `clone_is_trusted`, as in a call without a base commit, configuration files in the
    clone count too. Data that is at, in or around a path in `closed` is refused, because the
    training must not see it.
    """

    settings: FetchSettings
    dvc_config: bytes = b""
    lfs_config: bytes = b""
    clone_is_trusted: bool = False
    closed: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchedData:
    """Complete data on this machine: a file or folder at `source`, or files to copy.

    `place` is the path from the repository's root where the training finds the data, empty if it is
    below `$REPRO_GATE_DATA`. `origin` is for readers.
    """

    name: str
    kind: DataKind
    origin: str
    place: str = ""
    source: Path | None = None
    copies: tuple[CopiedFile, ...] = ()


MAX_NAME: Final = 100
# text that YAML accepts between brackets without quotation marks
PLAIN: Final = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./+-]*\Z")


def data_names(paths: Iterable[str]) -> dict[str, str]:
    """Map each path to a name below `$REPRO_GATE_DATA`: its last part, numbered if taken."""
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
    """Return the line of `repro-gate.yml` that declares these paths under these names."""
    entries = (f"{{path: {_written(path)}, as: {name}}}" for path, name in names.items())
    return f"data: [{', '.join(entries)}]"


def entry_at(path: str, place: str) -> str:
    """Return the settings line for a path of the machine that a script expects at `place`."""
    return f"data: [{{path: {_written(path)}, at: {_written(place)}}}]"


def entry_of_pointer(kind: str, path: str) -> str:
    """Return the settings line for a pointer in the tree; `kind` is `dvc` or `lfs`."""
    return f"data: [{{{kind}: {_written(path)}}}]"


def names_entry(hint: str) -> bool:
    """Return whether a hint contains a settings line that declares data."""
    return "`data: [" in hint


def _written(path: str) -> str:
    plain = path.rstrip("/") or path
    return plain if PLAIN.match(plain) else json.dumps(plain)
