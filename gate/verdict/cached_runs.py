"""Runs of a base commit that a later call may take in place of new ones."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from gate.evidence.run_evidence import SHA256_PATTERN, RunEvidence
from gate.text.records_document import Document

CACHED_SCHEMA: Final = "repro-gate.cached-runs/1"
CACHED_RUNS: Final = 2


class CachedRuns(Document):
    """The runs, and the digest of all that they depend on as far as it was known before them."""

    schema_version: Literal["repro-gate.cached-runs/1"] = CACHED_SCHEMA
    key: str = Field(pattern=SHA256_PATTERN)
    runs: Annotated[tuple[RunEvidence, ...], Field(min_length=CACHED_RUNS, max_length=CACHED_RUNS)]
