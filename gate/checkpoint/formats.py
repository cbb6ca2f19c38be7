"""Opens a saved state of any format that is known, told by its content and never by its name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gate.checkpoint.hostile_file import HostileFile, open_hostile
from gate.checkpoint.leaves import StateContent
from gate.checkpoint.safetensors_reader import read_safetensors
from gate.checkpoint.torch_archive import SAVE_HINT, read_torch_archive
from gate.checkpoint.zip_reader import read_zip_records

if TYPE_CHECKING:
    from gate.ports import Files

HEAD_BYTES = 14
# `torch.save(..., _use_new_zipfile_serialization=False)` starts with this number as a pickle.
LEGACY_HEAD = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
ZIP_HEAD = b"PK\x03\x04"


@contextmanager
def open_state(files: Files, path: Path, shown: str, *, max_bytes: int) -> Iterator[StateContent]:
    """The leaves of a saved state; their bytes can be read while the body runs.

    `shown` names the file in every error. Raises `EvidenceError` saying what is wrong with it.
    """
    with open_hostile(files, path, shown, max_bytes=max_bytes) as opened:
        yield _read_file(opened)


def _read_file(opened: HostileFile) -> StateContent:
    head = opened.read_at(0, min(HEAD_BYTES, opened.size_bytes))
    if head == LEGACY_HEAD:
        raise opened.fault("the legacy (non-zip) torch format is not read", hint=SAVE_HINT)
    if head.startswith(ZIP_HEAD):
        return read_torch_archive(opened, read_zip_records(opened))
    if head[8:9] == b"{":
        return read_safetensors(opened)
    raise opened.fault("is no torch.save archive and no safetensors file", hint=SAVE_HINT)
