"""Baseline folders for tests: read, filled, and forged with a correct digest."""

from __future__ import annotations

from pathlib import Path

from gate.baseline.entry import BaselineEntry, entry_name
from gate.baseline.record import with_digest
from gate.text.documents import read_document, write_document

FOLDER = ".repro-gate/baseline"


def forged(text: str) -> str:
    """Return an edited entry with the digest of its present content, as a forger would write it."""
    entry = read_document(BaselineEntry, text.encode(), "forged")
    return write_document(with_digest(entry)).decode()


def folder_of(*entries: BaselineEntry) -> dict[str, bytes]:
    """Return the files of a baseline folder with these entries, by name."""
    return {entry_name(entry): write_document(with_digest(entry)) for entry in entries}


def place_of_entry(text: str) -> str:
    """Return the path in a repository at which a proposed entry belongs."""
    return f"{FOLDER}/{entry_name(read_document(BaselineEntry, text.encode(), 'proposed'))}"


def only_entry(project: Path) -> Path:
    """Return the file of the only entry below a project."""
    (found,) = (project / FOLDER).iterdir()
    return found
