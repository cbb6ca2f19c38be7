"""Folders with declared data, and their digest as coreutils compute it."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from gate.data.declared import FetchedData, ListedFile, Listing
from gate.settings.data import DataKind, Verify

COMMAND = "find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum"
ODD_NAMES = (b"a", b"a b", b"a\nb", b"a\\b", b"\\n", b"\xff\xfe", b"-x", "ö".encode(), b"a.d/x")


def folder_of(path: Path, files: Mapping[bytes, bytes]) -> Path:
    """Write files below `path` with an old modification time, and return `path`."""
    for name, data in files.items():
        target = os.path.join(os.fsencode(path), name)  # noqa: PTH118 - names of any bytes
        os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120
        with open(target, "wb") as file:  # noqa: PTH123
            file.write(data)
        # old, because a test may change the file within one tick of the file system's clock
        os.utime(target, ns=(1, 1))
    return path


def coreutils_listing(path: Path) -> bytes:
    """Return what the command of docs/data.md prints in a folder."""
    return subprocess.run(
        ["/bin/sh", "-c", COMMAND], cwd=path, check=True, stdout=subprocess.PIPE
    ).stdout


def listing_of(contents: Mapping[str, str], verify: Verify = Verify.FULL) -> Listing:
    """Return the listing of files with these names and contents, as if they were on a disk."""
    files = (
        ListedFile(name, len(text), hashlib.sha256(text.encode()).hexdigest(), (1, 2, 3, 4))
        for name, text in contents.items()
    )
    return Listing(
        files=tuple(sorted(files, key=lambda file: os.fsencode(file.name))), verify=verify
    )


def fetched(name: str = "mini") -> FetchedData:
    """Return a data set at a path of this machine."""
    return FetchedData(name=name, kind=DataKind.PATH, origin=f"/srv/{name}")
