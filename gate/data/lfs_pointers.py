"""A pointer of Git LFS: the text that a commit holds in the place of a large file.

https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
"""

from __future__ import annotations

import re
from typing import Final

from gate.data.data_sets import DataPointer, PointerFile
from gate.errors import DataError
from gate.settings.data import DataKind
from gate.text.untrusted_text import short_text

# "Pointer files must be less than 1024 bytes in size"
MAX_LFS_BYTES: Final = 1023
BEGINNING: Final = b"version https://git-lfs.github.com/spec/"
VERSION: Final = "https://git-lfs.github.com/spec/v1"
HINT: Final = "Add the file anew with `git add`, in a clone where `git lfs install` was run."
_OID: Final = re.compile(r"sha256:(?P<digest>[0-9a-f]{64})\Z")
_SIZE: Final = re.compile(r"(?:0|[1-9][0-9]{0,17})\Z")
_KEY: Final = re.compile(r"[a-z0-9.-]+\Z")


def read_lfs(file: PointerFile, data: bytes) -> DataPointer | None:
    """What the pointer names; None for a file that is its own content.

    Raises `DataError` for a pointer that is torn, of another version, or has an extension: a
    program that would have to turn the object into the file.
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
    """Keys and values, `version` first, the others in order, each once."""
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
            raise _lfs_fault(path, f"has a line that is no key and value: {short_text(line)}")
        if key in fields:
            raise _lfs_fault(path, f"has the key {key} twice")
        fields[key] = value
    keys = list(fields)[1:]
    if keys != sorted(keys):
        raise _lfs_fault(path, "has its keys in another order than Git LFS writes them")
    return fields


def _lfs_fault(path: str, problem: str) -> DataError:
    return DataError(f"{path}: the pointer of Git LFS {problem}", hint=HINT)
