"""One file out of a zip archive that somebody else made; nothing is unpacked to the disk."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Final

from gate.errors import DocumentError
from gate.system.files.reading import open_regular

MEMBER_PIECE_BYTES: Final = 1024 * 1024
# whoever wrote another method did not use what GitHub uses
METHODS: Final = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_BROKEN: Final = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    EOFError,
    # a directory that names a place before the file's beginning
    OSError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    UnicodeDecodeError,
    ValueError,
)


def zip_member(path: Path, name: str, shown: str, *, max_archive: int, max_bytes: int) -> bytes:
    """The content of the one member called `name`, in whatever folder of the archive it lies.

    At most `max_bytes` of it are unpacked, whatever the archive says (CWE-409), and its path leads
    nowhere, since nothing is written (CWE-22). Raises `DocumentError` for a broken archive, and for
    one with no such member or more than one.
    """
    with open_regular(path, max_archive) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                found = [
                    member
                    for member in archive.infolist()
                    if PurePosixPath(member.filename).name == name and not member.is_dir()
                ]
                # of two, readers could take this one or that one
                if len(found) != 1:
                    raise _wrong_number(shown, name, len(found))
                return _content(archive, found[0], shown, max_bytes)
        except _BROKEN as error:
            raise DocumentError(
                f"{shown}: not a readable zip archive",
                hint="Download the artifact again.",
            ) from error


def _content(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, shown: str, max_bytes: int
) -> bytes:
    if member.compress_type not in METHODS:
        raise DocumentError(
            f"{shown}: compressed in a way that GitHub does not use",
            hint="Unpack it, and name the folder with --from.",
        )
    with archive.open(member) as opened:
        content = bytearray()
        while piece := opened.read(MEMBER_PIECE_BYTES):
            content += piece
            if len(content) > max_bytes:
                raise DocumentError(
                    f"{shown}: the baseline in it is larger than {max_bytes // 1024**2} MiB",
                    hint="No gate proposes such a baseline. Find out where this file comes from.",
                )
    return bytes(content)


def _wrong_number(shown: str, name: str, number: int) -> DocumentError:
    if number:
        return DocumentError(
            f"{shown}: holds {number} files called {name}",
            hint="Unpack it, and name the right one with --from.",
        )
    return DocumentError(
        f"{shown}: holds no {name}",
        hint="No entry is proposed for a run that was not repeatable, not finite or not "
        "committed. Look at the run's summary; another artifact is named with --artifact.",
    )
