"""Which names the files of a package may have, and where they lie.

Asked where a package is written and read, and before anything is kept for one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

# the two fields of a POSIX ustar header
NAME_BYTES: Final = 100
PREFIX_BYTES: Final = 155
_PRINTABLE: Final = re.compile(r"[ -~]+")


def name_problem(name: str) -> str:
    """Why a name could leave the folder it is unpacked in, or mean two things; empty if neither."""
    parts = name.split("/")
    if not _PRINTABLE.fullmatch(name):
        return "has a character that is not printable ASCII"
    if "\\" in name:
        return "has a backslash"
    if name.startswith("/"):
        return "is absolute"
    if any(part in {"", ".", ".."} for part in parts):
        return "has an empty part, '.' or '..'"
    # unpacked in a work tree, `.git/config` or `.gitattributes` would name programs to git
    if any(part.lower().startswith(".git") for part in parts):
        return "has a part that begins with .git"
    return "" if split_name(name) else "is too long for the ustar format"


def split_name(name: str) -> tuple[bytes, bytes] | None:
    """Prefix and name fields; the longest prefix that fits, as GNU tar does it."""
    if len(name) <= NAME_BYTES:
        return b"", name.encode("ascii")
    # the slash between both fields is in neither (POSIX, ustar): the reader puts it back
    cut = name.rfind("/", 0, PREFIX_BYTES + 1)
    if cut < 1 or len(name) - cut - 1 > NAME_BYTES:
        return None
    return name[:cut].encode("ascii"), name[cut + 1 :].encode("ascii")


def colliding(names: Sequence[str]) -> tuple[str, str] | None:
    """The first two names that would be one file, or a file and a folder, where case is ignored."""
    seen: dict[str, str] = {}
    for name in names:
        # on a disk that ignores case one would overwrite the other after both were verified
        if name.lower() in seen:
            return seen[name.lower()], name
        seen[name.lower()] = name
    for name in names:
        for folder in _folders(name.lower()):
            if folder in seen:
                return seen[folder], name
    return None


def _folders(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


STATE_MEMBER: Final = "checkpoint/state.safetensors"
MODEL_FOLDER: Final = "model"
# of a package that is verified, audited or fetched
MAX_PACKAGE_BYTES: Final = 64 * 1024**3
# of one seal; a provenance of ten thousand files stays below
MAX_SEAL_BYTES: Final = 8 * 1024 * 1024
