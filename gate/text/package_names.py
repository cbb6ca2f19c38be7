"""Which names the files of a package may have, and where its fixed files are.

Code asks this when it writes or reads a package, and before it keeps a file for one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

# the sizes of the two name fields of a POSIX ustar header
NAME_BYTES: Final = 100
PREFIX_BYTES: Final = 155
_PRINTABLE: Final = re.compile(r"[ -~]+")


def name_problem(name: str) -> str:
    """Return why a name is not allowed, or an empty text.

    A name must not leave the folder in which the package is unpacked, and must mean one thing only.
    """
    parts = name.split("/")
    if not _PRINTABLE.fullmatch(name):
        return "has a character that is not printable ASCII"
    if "\\" in name:
        return "has a backslash"
    if name.startswith("/"):
        return "is absolute"
    if any(part in {"", ".", ".."} for part in parts):
        return "has an empty part, '.' or '..'"
    # unpacked in a work tree, `.git/config` or `.gitattributes` could make git run programs
    if any(part.lower().startswith(".git") for part in parts):
        return "has a part that begins with .git"
    return "" if split_name(name) else "is too long for the ustar format"


def split_name(name: str) -> tuple[bytes, bytes] | None:
    """Return the prefix and name fields, or None if the name does not fit.

    The prefix is the longest one that fits, as in GNU tar.
    """
    if len(name) <= NAME_BYTES:
        return b"", name.encode("ascii")
    # the slash between the fields is in neither of them: the reader adds it (POSIX, ustar)
    cut = name.rfind("/", 0, PREFIX_BYTES + 1)
    if cut < 1 or len(name) - cut - 1 > NAME_BYTES:
        return None
    return name[:cut].encode("ascii"), name[cut + 1 :].encode("ascii")


def colliding(names: Sequence[str]) -> tuple[str, str] | None:
    """Return the first two names that collide where case is ignored, or None.

    They would be one file, or a file and a folder.
    """
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
# limit for a package that is verified, audited or fetched
MAX_PACKAGE_BYTES: Final = 64 * 1024**3
# limit for one seal; a provenance of ten thousand files stays below it
MAX_SEAL_BYTES: Final = 8 * 1024 * 1024
