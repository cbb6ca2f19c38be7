"""Open a package whose seal is not verified, to read its files in place; only headers are checked.

This module imports no parser of states, so that a command which may hold a key can read a document
of a package (T5).
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
    """Return whether the file begins like a package of the gate."""
    try:
        with files.open_binary(path, max_bytes=MAX_BYTES) as stream:
            return looks_like_package(stream.read(BLOCK_BYTES))
    except StorageError:
        # A folder, or not readable. Opening it as a state gives the precise message.
        return False


@contextmanager
def open_members(
    files: Files, path: Path
) -> Iterator[tuple[UntrustedFile, Mapping[str, tuple[int, int]]]]:
    """Open a package while the body runs, with (start, size in bytes) of each of its files.

    Raises `EvidenceError` for a package that the gate would not write.
    """
    with open_untrusted(files, path, safe_line(str(path)), max_bytes=MAX_BYTES) as opened:
        try:
            members = tuple(member_index(opened.read_at, opened.size_bytes))
        except AttestationError as error:
            raise EvidenceError(f"{opened.shown}: {error.message}", hint=error.hint) from error
        yield opened, {name: (start, size_bytes) for name, start, size_bytes in members}
