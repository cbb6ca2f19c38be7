"""Opens a saved state of any known format, a file or a folder, detected by its content."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gate.checkpoint.formats.file_formats import UnknownContent, read_file
from gate.checkpoint.formats.folder_reader import read_folder
from gate.checkpoint.formats.sharded_reader import read_index, read_shards
from gate.checkpoint.hashing.gc_pause import gc_paused
from gate.checkpoint.leaves import StateContent
from gate.checkpoint.sources.untrusted_file import HINT, ReadableFiles
from gate.checkpoint.sources.untrusted_folder import UntrustedFolder, open_untrusted_folder
from gate.codec.untrusted_text import plain_text
from gate.errors import DocumentError, EvidenceError


@contextmanager
def open_state(
    files: ReadableFiles,
    path: Path,
    shown: str,
    *,
    max_bytes: int,
    unknown: UnknownContent = UnknownContent.REFUSE,
) -> Iterator[StateContent]:
    """The leaves of a saved state; their bytes can be read while the body runs.

    `shown` names it in every error, `max_bytes` is for all of its files together, and `unknown`
    says what happens to files whose content is not understood. Raises `EvidenceError` saying what
    is wrong with it.
    """
    is_folder = files.is_folder(path)
    # the folder around a single file too: it may be an index of shards that lie beside it
    where = path if is_folder else path.parent
    with open_untrusted_folder(files, where, shown, max_bytes=max_bytes) as folder:
        try:
            with gc_paused():
                content = (
                    read_folder(folder, unknown) if is_folder else _read(folder, path, unknown)
                )
        except DocumentError as error:
            details = tuple(map(plain_text, error.details))
            raise EvidenceError(plain_text(error.message), hint=HINT, details=details) from error
        yield content


def _read(beside: UntrustedFolder, path: Path, unknown: UnknownContent) -> StateContent:
    """A file on its own, or the index of the shards beside it."""
    opened = beside.open(path.name, shown=beside.shown)
    places = read_index(opened)
    if places is not None:
        return read_shards(beside, places, path.name)
    return read_file(opened, unknown)
