"""A baseline's folder: found, filled, and written as somebody does who knows the digest."""

from __future__ import annotations

from pathlib import Path

from gate.baseline.entry import BaselineEntry, entry_name
from gate.baseline.record import with_digest
from gate.text.documents import read_document, write_document

FOLDER = ".repro-gate/baseline"


def forged(text: str) -> str:
    """The same entry with the digest of what stands in it now."""
    entry = read_document(BaselineEntry, text.encode(), "forged")
    return write_document(with_digest(entry)).decode()


def folder_of(*entries: BaselineEntry) -> dict[str, bytes]:
    """The entries' files by their names, as they lie in a folder."""
    return {entry_name(entry): write_document(with_digest(entry)) for entry in entries}


def place_of_entry(text: str) -> str:
    """Where in a repository a proposed entry belongs."""
    return f"{FOLDER}/{entry_name(read_document(BaselineEntry, text.encode(), 'proposed'))}"


def only_entry(project: Path) -> Path:
    """The file of the only entry below a project."""
    (found,) = (project / FOLDER).iterdir()
    return found
