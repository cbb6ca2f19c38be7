"""The document `data.json`: the declared data that a commit was trained with, for a person.

It is made from the evidence and read by nobody who judges.
"""

from __future__ import annotations

from typing import Final, Literal

from gate.data.data_sets import DataSets
from gate.evidence.run_evidence import EvidenceSet
from gate.text.records_document import Document, Timestamp

DATA_SCHEMA: Final = "repro-gate.data/1"
DATA_NAME: Final = "data.json"


class DataDocument(Document):
    """The file `data.json`; a training that declared no data has no `sets`."""

    schema_version: Literal["repro-gate.data/1"] = DATA_SCHEMA
    commit: str
    created_at: Timestamp
    sets: DataSets


def data_document(evidence: EvidenceSet) -> DataDocument:
    """The data sets as the runs found them, without the digests of their parts."""
    return DataDocument(
        commit=evidence.commit,
        created_at=evidence.created_at,
        sets=tuple(one.model_copy(update={"parts": ()}) for one in evidence.data),
    )
