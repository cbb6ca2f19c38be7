"""The folders that a logging client filled: what is in them is read or refused, never passed over.

A number that nobody reads is compared by nobody, and a run that differs in it would pass.
"""

from __future__ import annotations

import os.path
from pathlib import Path
from typing import Final

from gate.errors import EvidenceError, StorageError
from gate.system.files.port import Files
from gate.text.untrusted_text import plain_text

MAX_NAMES: Final = 20_000
REAL_HINT: Final = "Let the training log into real folders, without links, and fewer files."


def logged_names(files: Files, folder: Path, shown: str) -> tuple[str, ...]:
    """The names in a folder, sorted; none where nothing is there.

    Raises `EvidenceError` for a link or a file in its place, and above 20,000 names.
    """
    if not files.exists(folder):
        return ()
    try:
        return files.list_names(folder, max_names=MAX_NAMES)
    except StorageError as error:
        message = f"{shown}: cannot be read: {plain_text(error.message)}"
        raise EvidenceError(message, hint=REAL_HINT) from error


def refuse_link_out(files: Files, path: Path, within: Path, shown: str) -> None:
    """Raise `EvidenceError` for a link that leads out of a folder.

    What lies inside is read where it is: a link such as `latest` adds nothing.
    """
    target = files.link_target(path)
    if target is None:
        return
    led_to = Path(os.path.normpath(path.parent / target))
    if Path(target).is_absolute() or not led_to.is_relative_to(within):
        raise EvidenceError(
            f"{shown}: {plain_text(str(path.relative_to(within)))} is a link that leads out of it",
            hint=REAL_HINT,
        )
