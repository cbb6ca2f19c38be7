"""A package of which nothing is verified but its headers, open for its files to be read in place.

No parser of states is in reach of this module, so a command that may hold a key can read a
document of a package.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gate.checkpoint.untrusted_files import UntrustedFile, open_untrusted
from gate.errors import AttestationError, EvidenceError, StorageError
from gate.package.ustar import BLOCK_BYTES, looks_like_package, member_index
from gate.text.untrusted_text import safe_line

if TYPE_CHECKING:
    from gate.system.files.port import Files

MAX_BYTES: Final = 2**40


def is_package(files: Files, path: Path) -> bool:
    """Whether a file looks like a package of the gate."""
    try:
        with files.open_binary(path, max_bytes=MAX_BYTES) as stream:
            return looks_like_package(stream.read(BLOCK_BYTES))
    except StorageError:
        # a folder, or nothing that can be read: opening it as a state says which
        return False


@contextmanager
def open_members(
    files: Files, path: Path
) -> Iterator[tuple[UntrustedFile, Mapping[str, tuple[int, int]]]]:
    """A package while the body runs, and start and size in bytes of each of its files.

    Raises `EvidenceError` for one that the gate would not write.
    """
    with open_untrusted(files, path, safe_line(str(path)), max_bytes=MAX_BYTES) as opened:
        try:
            members = tuple(member_index(opened.read_at, opened.size_bytes))
        except AttestationError as error:
            raise EvidenceError(f"{opened.shown}: {error.message}", hint=error.hint) from error
        yield opened, {name: (start, size_bytes) for name, start, size_bytes in members}
