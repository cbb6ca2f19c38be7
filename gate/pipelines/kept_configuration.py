"""Reads the training's configuration from a verdict, a package or a baseline entry.

All of them are untrusted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gate.baseline.folder import read_entry
from gate.checkpoint.untrusted_files import open_untrusted
from gate.errors import EvidenceError
from gate.evidence.configuration import Configuration, configuration_digest
from gate.package.open_members import is_package, open_members
from gate.system.files.port import Files
from gate.text.documents import read_document
from gate.text.untrusted_text import safe_line
from gate.verdict.verdict import Verdict

VERDICT_MEMBER: Final = "verdict.json"
MAX_DOCUMENT_BYTES: Final = 64 * 1024 * 1024
ENTRY_MARK: Final = b'"repro-gate.baseline-entry/1"'
PLACE_HINT: Final = (
    "Name an output folder, its verdict.json, a package.tar, or a file of the baseline."
)


def open_configuration(files: Files, path: Path) -> Configuration | None:
    """Return the training's configuration in the document at `path`; None if it has none.

    `path` is an output folder, its verdict.json, a package, or an entry of a baseline. Call it in a
    confined child. Raises `EvidenceError` for any other file, and if the digest does not match the
    values.
    """
    file = path / VERDICT_MEMBER if files.is_folder(path) else path
    shown = safe_line(str(file))
    if not files.exists(file):
        raise EvidenceError(f"there is nothing at {shown}", hint=PLACE_HINT)
    data = _document(files, file, shown)
    if ENTRY_MARK in data:
        values = read_entry(data, shown).configuration
        return Configuration(digest=configuration_digest(values), values=values) if values else None
    configuration = read_document(Verdict, data, shown, max_bytes=MAX_DOCUMENT_BYTES).configuration
    if configuration is not None and configuration.digest != configuration_digest(
        configuration.values
    ):
        raise EvidenceError(
            f"{shown}: the configuration does not match its digest",
            hint="The file was changed; fetch it again from where it was made.",
        )
    return configuration


def _document(files: Files, file: Path, shown: str) -> bytes:
    if not is_package(files, file):
        with open_untrusted(files, file, shown, max_bytes=MAX_DOCUMENT_BYTES) as opened:
            return opened.read_at(0, opened.size_bytes)
    with open_members(files, file) as (package, places):
        start, size_bytes = places.get(VERDICT_MEMBER, (0, 0))
        if not 0 < size_bytes <= MAX_DOCUMENT_BYTES:
            raise package.fault(f"holds no readable {VERDICT_MEMBER}", hint=PLACE_HINT)
        return package.read_at(start, size_bytes)
