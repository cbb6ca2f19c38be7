"""The files of a data set with their digests, and whether they still are as listed."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from gate.codec.untrusted_text import safe_line
from gate.errors import DataError
from gate.records.observed.data.listed import ListedFile, Listing
from gate.records.sections.data import Verify


def take_listing(source: Path, verify: Verify, digests: Path | None) -> Listing:
    """Every file below a path, or the one there, with its SHA-256; raises `DataError`."""
    del digests
    try:
        files = tuple(_listed(source))
    except OSError as error:
        raise DataError(
            f"{safe_line(str(source))} cannot be read: {error.strerror or error}",
            hint="Let the gate's account read all of it.",
        ) from error
    return Listing(files=files, verify=verify)


def first_change(source: Path, listing: Listing) -> str:
    """The name of the first file that is not as it was listed; empty where none is."""
    now = {file.name: file for file in take_listing(source, listing.verify, None).files}
    before = {file.name: file for file in listing.files}
    changed = {
        name for name in now.keys() | before.keys() if _content(now, name) != _content(before, name)
    }
    return min(changed, default="")


def _content(files: dict[str, ListedFile], name: str) -> str:
    return files[name].sha256 if name in files else ""


def _listed(source: Path) -> Iterator[ListedFile]:
    if not stat.S_ISDIR(source.lstat().st_mode):
        yield _file(source, "")
        return
    paths = (Path(folder, name) for folder, _, names in os.walk(source) for name in names)
    for path in sorted(paths, key=lambda path: os.fsencode(path.relative_to(source))):
        yield _file(path, path.relative_to(source).as_posix())


def _file(path: Path, name: str) -> ListedFile:
    facts = path.lstat()
    if not stat.S_ISREG(facts.st_mode):
        raise DataError(
            f"{safe_line(str(path))} is no regular file", hint="Links are not followed."
        )
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    stamp = (facts.st_dev, facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns)
    return ListedFile(name=name, size_bytes=facts.st_size, sha256=digest, stamp=stamp)
