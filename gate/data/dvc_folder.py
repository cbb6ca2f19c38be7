"""A folder as DVC keeps it: a listing in JSON under its MD5, and each file under its own.

A listing comes from wherever the commit under test points to, so nothing of it is a path before it
was looked at here: DVC itself would write a file at `../x`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from gate.data.checks import md5_of, wrong_md5
from gate.errors import DataError, DocumentError
from gate.system.files import writing
from gate.text.strict_json import parse_json
from gate.text.untrusted_text import short_text

LISTING: Final = "listing.json"
CONTENT: Final = "content"
MAX_LISTING_BYTES: Final = 160 * 1024**2
MAX_FILES: Final = 1_500_000
MAX_NAME_BYTES: Final = 255
MAX_PATH_BYTES: Final = 3000
FOLDER_HINT: Final = "Add the folder anew with `dvc add`, commit its .dvc file, and `dvc push`."
_MD5: Final = re.compile(r"[0-9a-f]{32}\Z")


class FolderFile(NamedTuple):
    """A file of a folder, by its relative path and its MD5."""

    path: str
    md5: str


def read_listing(path: Path, entry: str) -> tuple[FolderFile, ...]:
    """The files that a listing names; raises `DataError` for one that no folder has."""
    try:
        size = path.lstat().st_size
        data = path.read_bytes() if size <= MAX_LISTING_BYTES else b""
        rows = parse_json(data, "the listing", max_bytes=MAX_LISTING_BYTES)
    except DocumentError as error:
        raise _fault(entry, error.message) from error
    if not isinstance(rows, list) or len(rows) > MAX_FILES:
        raise _fault(entry, f"it is no list of at most {MAX_FILES:,} files")
    files = tuple(_listed_file(row, entry) for row in rows)
    if len({file.path for file in files}) < len(files):
        raise _fault(entry, "it names a file twice")
    return files


def put_together(
    files: tuple[FolderFile, ...], listing: Path, objects: dict[str, Path], target: Path
) -> int:
    """Make the folder out of its objects, without copying; answers its size in bytes.

    Raises `OSError`, also where a file would have to be a folder too.
    """
    writing.new_folder(target)
    writing.new_folder(target / CONTENT)
    size = 0
    made: set[Path] = set()
    for file in files:
        there = target / CONTENT / file.path
        if there.parent not in made:
            writing.make_folders(there.parent)
            made.add(there.parent)
        # equal files are one on disk: nobody may write to either
        writing.second_name(objects[file.md5], there)
        size += there.lstat().st_size
    writing.rename(listing, target / LISTING)
    return size


def is_whole(folder: Path, digest: str, *, dos2unix: bool) -> bool:
    """Whether a folder that was put together still is what its digest says, and no more."""
    try:
        if md5_of(folder / LISTING, dos2unix=dos2unix) != digest:
            return False
        files = read_listing(folder / LISTING, "")
        content = folder / CONTENT
        there = set(_files_below(content))
    except (OSError, DataError):
        return False
    rows = [(content / file.path, file.md5) for file in files]
    return there == {file.path for file in files} and not any(
        True for _ in wrong_md5(rows, dos2unix=dos2unix)
    )


def _files_below(top: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(top):
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in (*names, *links):
            yield Path(folder, name).relative_to(top).as_posix()


def _listed_file(row: object, entry: str) -> FolderFile:
    path, digest = (row.get("relpath"), row.get("md5")) if isinstance(row, dict) else (None, None)
    if not isinstance(path, str) or not isinstance(digest, str) or not _MD5.match(digest):
        raise _fault(entry, f"it has a row without a path and an MD5: {short_text(str(row))}")
    try:
        parts = path.encode("utf-8").split(b"/")
    except UnicodeEncodeError as error:
        raise _fault(entry, f"{short_text(path)} cannot be the name of a file") from error
    wrong = not {b"", b".", b".."}.isdisjoint(parts) or "\0" in path
    if wrong or max(map(len, parts)) > MAX_NAME_BYTES or len(path) > MAX_PATH_BYTES:
        raise _fault(entry, f"{short_text(path)} is no path below the folder")
    return FolderFile(path, digest)


def _fault(entry: str, problem: str) -> DataError:
    return DataError(
        f"data: {entry}: the remote's listing of it is refused: {problem}", hint=FOLDER_HINT
    )
