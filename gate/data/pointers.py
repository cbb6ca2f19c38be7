"""Parse `.dvc` files, `dvc.lock` files and Git LFS pointers; runs in the confined process only.

Formats:

- https://dvc.org/doc/user-guide/project-structure/dvc-files and .../dvcyaml-files#dvclock-file
- https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from pydantic import ValidationError

from gate.data.data_sets import MAX_NUMBER, MAX_POINTERS, DataPointer, DataPointers, PointerFile
from gate.errors import DataError, SettingsError
from gate.settings.data import LOCK_NAME, DataKind
from gate.text.strict_yaml import parse_yaml
from gate.text.untrusted_text import plain_text, short_text

FOLDER_END: Final = ".dir"
SCHEMA: Final = "2.0"
_MD5: Final = re.compile(r"[0-9a-f]{32}(?:\.dir)?\Z")
ADD_AGAIN: Final = "Add the data again with `dvc add`, and commit the .dvc file that it writes."
RUN_AGAIN: Final = "Regenerate it with `dvc repro` or `dvc commit`, and commit it."
# Keys with which DVC would not use the remote that the base commit names, or no remote at all.
ELSEWHERE: Final = {
    "remote": "names a remote of its own",
    "cloud": "names versions in a cloud (a remote with version_aware)",
    "files": "names versions in a cloud (a remote with version_aware)",
    "version_id": "names a version in a cloud (a remote with version_aware)",
}
ELSEWHERE_HINT: Final = (
    "Data comes from the default remote of the base commit's .dvc/config alone: take the line out, "
    "and `dvc push` to that remote."
)


def read_dvc(file: PointerFile, data: bytes) -> DataPointers:
    """Return one pointer for each output of a DVC file, in the order of their paths.

    Raises `DataError` for a file that is not a DVC file, and for an import. Also for an output
    outside the repository, in another remote or not in a cache.
    """
    document = _parsed(file.path, data)
    outputs = _of_lock(file, document) if _is_lock(file) else _of_dvc(file, document)
    pointers = sorted(outputs, key=lambda pointer: pointer.path)
    if not pointers:
        raise _fault(file, "names no data")
    if len(pointers) > MAX_POINTERS:
        raise _fault(file, f"names more than {MAX_POINTERS:,} files and folders")
    _refuse_overlap(file, [pointer.path for pointer in pointers])
    return tuple(pointers)


def _is_lock(file: PointerFile) -> bool:
    return posixpath.basename(file.path) == LOCK_NAME


def _parsed(path: str, data: bytes) -> Mapping[str, object]:
    try:
        document, _ = parse_yaml(data, path, foreign=True)
    except SettingsError as error:
        # `parse_yaml` blames the settings, but here a file that they name is wrong.
        raise DataError(error.message, hint=error.hint or ADD_AGAIN) from error
    if not isinstance(document, dict):
        raise DataError(f"{path}: must be a mapping of keys to values", hint=ADD_AGAIN)
    return document


def _of_dvc(file: PointerFile, document: Mapping[str, object]) -> Iterator[DataPointer]:
    # An import has dependencies. DVC would fetch from the address in them, which the commit chose.
    if document.get("deps"):
        raise DataError(
            f"{file.path}: it imports its data (deps): an address of the commit would be asked",
            hint="Declare the address itself as `url` with its `sha256`, or add the data to this "
            "repository's own remote with `dvc add`.",
        )
    wdir = document.get("wdir", ".")
    if not isinstance(wdir, str):
        raise _fault(file, "wdir is not text")
    for place, out in _rows(file, document.get("outs"), "outs"):
        yield _pointer(file, place, out, wdir)


def _of_lock(file: PointerFile, document: Mapping[str, object]) -> Iterator[DataPointer]:
    if document.get("schema") != SCHEMA:
        raise _fault(file, f"schema is not '{SCHEMA}'")
    stages = document.get("stages")
    if not isinstance(stages, dict):
        raise _fault(file, "stages is not a mapping")
    if file.stage and file.stage not in stages:
        known = ", ".join(plain_text(name) for name in list(stages)[:10])
        raise DataError(
            f"{file.path}: it has no stage {short_text(file.stage)}",
            hint=f"Correct `stage` in the settings: the file has {known or 'none'}.",
        )
    for name in [file.stage] if file.stage else stages:
        stage = stages[name]
        if not isinstance(stage, dict):
            raise _fault(file, f"stages.{plain_text(name)} is not a mapping")
        for place, out in _rows(file, stage.get("outs", []), f"stages.{plain_text(name)}.outs"):
            yield _pointer(file, place, out, ".")


def _rows(
    file: PointerFile, rows: object, place: str
) -> Iterator[tuple[str, Mapping[str, object]]]:
    if not isinstance(rows, list):
        raise _fault(file, f"{place} is not a list")
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise _fault(file, f"{place}[{number}] is not a mapping")
        yield f"{place}[{number}]", row


def _pointer(file: PointerFile, place: str, out: Mapping[str, object], wdir: str) -> DataPointer:
    for key, problem in ELSEWHERE.items():
        if key in out:
            raise DataError(f"{file.path}: {place} {problem} ({key})", hint=ELSEWHERE_HINT)
    for key in ("cache", "push"):
        if out.get(key) is False:
            raise DataError(
                f"{file.path}: {place} has {key}: false, so no remote holds it",
                hint="Let DVC keep it in its cache, and `dvc push`; a file that is on the machine "
                "already is declared by `path`.",
            )
    digest, kind = out.get("md5"), out.get("hash", "md5")
    if not isinstance(digest, str) or not _MD5.match(digest) or kind != "md5":
        raise _fault(file, f"{place} has no MD5 as DVC writes it: {short_text(str(digest))}")
    try:
        return DataPointer(
            name=file.name,
            kind=DataKind.DVC,
            path=_inside(file, place, out.get("path"), wdir),
            digest=digest.removesuffix(FOLDER_END),
            is_folder=digest.endswith(FOLDER_END),
            size_bytes=_count(file, place, out, "size"),
            files=_count(file, place, out, "nfiles"),
            # DVC before version 3 wrote no `hash`, and hashed text without carriage returns.
            dos2unix="hash" not in out,
        )
    except ValidationError as error:
        raise _fault(file, f"{place}: its path cannot be a place of the repository") from error


def _inside(file: PointerFile, place: str, path: object, wdir: str) -> str:
    """Return the path from the repository's root; refuse what DVC would take as another place."""
    if not isinstance(path, str) or not path:
        raise _fault(file, f"{place} has no path")
    for key, value in ((f"{place}.path", path), ("wdir", wdir)):
        if posixpath.isabs(value) or "://" in value or not value.isprintable():
            raise DataError(
                f"{file.path}: {key} is not a path of the repository: {short_text(value)}",
                hint="Declare data elsewhere on the machine by `path`, in the settings.",
            )
    whole = posixpath.normpath(posixpath.join(posixpath.dirname(file.path), wdir, path))
    own = posixpath.normpath(path)
    if ".." in path.split("/") or own == "." or whole.split("/")[0] == "..":
        raise DataError(
            f"{file.path}: {place} leaves the repository, or is a whole folder of it: "
            f"{short_text(path)}",
            hint="Keep the .dvc file next to its data, inside the repository.",
        )
    return whole


def _count(file: PointerFile, place: str, out: Mapping[str, object], key: str) -> int | None:
    value = out.get(key)
    if value is None:
        return None
    # bool is a kind of int in Python, but `true` is not a count.
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_NUMBER:
        raise _fault(file, f"{place}.{key} is not a count")
    return value


def _refuse_overlap(file: PointerFile, paths: list[str]) -> None:
    """Refuse two outputs at one path, or one inside the other: a training cannot get both."""
    seen = set(paths)
    if len(seen) < len(paths):
        raise _fault(file, "names one path twice")
    for path in paths:
        parts = path.split("/")
        for end in range(1, len(parts)):
            if "/".join(parts[:end]) in seen:
                raise _fault(file, f"names {short_text(path)} and a folder that holds it")


def _fault(file: PointerFile, problem: str) -> DataError:
    return DataError(f"{file.path}: {problem}", hint=RUN_AGAIN if _is_lock(file) else ADD_AGAIN)


# Git LFS's specification: "Pointer files must be less than 1024 bytes in size"
MAX_LFS_BYTES: Final = 1023
BEGINNING: Final = b"version https://git-lfs.github.com/spec/"
VERSION: Final = "https://git-lfs.github.com/spec/v1"
HINT: Final = "Add the file again with `git add`, in a clone where `git lfs install` was run."
_OID: Final = re.compile(r"sha256:(?P<digest>[0-9a-f]{64})\Z")
_SIZE: Final = re.compile(r"(?:0|[1-9][0-9]{0,17})\Z")
_KEY: Final = re.compile(r"[a-z0-9.-]+\Z")


def read_lfs(file: PointerFile, data: bytes) -> DataPointer | None:
    """Return what an LFS pointer names, or None for a file that is not a pointer.

    Raises `DataError` for a pointer that is incomplete, has another version, or has an extension.
    An extension is a program that would have to turn the object into the file.
    """
    if len(data) > MAX_LFS_BYTES or not data.startswith(BEGINNING):
        return None
    fields = _fields(file.path, data)
    oid, size = _OID.match(fields.get("oid", "")), _SIZE.match(fields.get("size", ""))
    if fields["version"] != VERSION:
        raise _lfs_fault(file.path, f"has version {short_text(fields['version'])}, not {VERSION}")
    if any(key.startswith("ext-") for key in fields):
        raise DataError(
            f"{file.path}: a pointer of Git LFS with an extension is not supported",
            hint="Store the file without lfs.extension: its object has to be its content.",
        )
    if oid is None:
        raise _lfs_fault(file.path, "has no oid of 64 hexadecimal digits behind sha256:")
    if size is None:
        raise _lfs_fault(file.path, "has no size in bytes")
    return DataPointer(
        name=file.name,
        kind=DataKind.LFS,
        path=file.path,
        digest=oid["digest"],
        size_bytes=int(size[0]),
    )


def _fields(path: str, data: bytes) -> dict[str, str]:
    """Return the fields of a pointer; the keys must be unique, and sorted after `version`."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _lfs_fault(path, f"is not UTF-8 at byte {error.start}") from error
    if not text.endswith("\n"):
        raise _lfs_fault(path, "ends in the middle of a line")
    fields: dict[str, str] = {}
    for line in text.removesuffix("\n").split("\n"):
        key, space, value = line.partition(" ")
        if not space or not value or not _KEY.match(key):
            raise _lfs_fault(path, f"has a line that is not a key and a value: {short_text(line)}")
        if key in fields:
            raise _lfs_fault(path, f"has the key {key} twice")
        fields[key] = value
    keys = list(fields)[1:]
    if keys != sorted(keys):
        raise _lfs_fault(path, "has its keys in a different order than Git LFS writes them")
    return fields


def _lfs_fault(path: str, problem: str) -> DataError:
    return DataError(f"{path}: the pointer of Git LFS {problem}", hint=HINT)


MAX_POINTER_BYTES: Final = 256 * 1024


def read_pointers(
    files: Iterable[PointerFile], content: Callable[[PointerFile], bytes]
) -> DataPointers:
    """Return the pointers in all files, in order; raises `DataError` at the first fault."""
    return tuple(pointer for file in files for pointer in _of(file, content(file)))


def _of(file: PointerFile, data: bytes) -> Iterator[DataPointer]:
    if file.kind is DataKind.LFS:
        pointer = read_lfs(file, data)
        if pointer is not None:
            yield pointer
    else:
        yield from read_dvc(file, data)
