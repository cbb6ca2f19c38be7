"""A baseline as somebody writes it who knows what the digest of an entry is made of."""

from __future__ import annotations

from gate.baseline.record import with_digest
from gate.codec.documents import read_document, write_document
from gate.records.baseline import Baseline


def forged(text: str) -> str:
    """The same file, each entry with the digest of what stands in it now."""
    baseline = read_document(Baseline, text.encode(), "forged")
    entries = tuple(with_digest(entry) for entry in baseline.entries)
    return write_document(Baseline(entries=entries)).decode()
