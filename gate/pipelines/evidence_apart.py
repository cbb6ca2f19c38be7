"""A folder of evidence that another job wrote, read where a fault in reading it reaches nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gate.evidence.evidence_folder import read_evidence_set
from gate.evidence.run_evidence import EvidenceSet
from gate.isolation.confined_look import LARGE_ANSWER_BYTES, read_apart, reading_seconds
from gate.system.files.port import Files
from gate.text.documents import RecordForm
from gate.text.untrusted_text import safe_line

FORM: Final[RecordForm[EvidenceSet]] = RecordForm(EvidenceSet)


def read_evidence_apart(files: Files, folder: Path) -> EvidenceSet:
    """What `read_evidence_set` reads, in a confined child.

    This process may hold the key, and text takes many times its size in memory. Raises
    `EvidenceError` as that does, and for what takes too long or too much.
    """
    return read_apart(
        FORM,
        lambda: read_evidence_set(files, folder),
        what=f"the evidence in {safe_line(str(folder))}",
        seconds=reading_seconds(folder),
        answer_bytes=LARGE_ANSWER_BYTES,
    )
