"""What `repro-gate.yml` may say about recording: section `record`."""

from __future__ import annotations

from pydantic import Field

from gate.records.document import Document


class RecordSettings(Document):
    """How much of a step's time the recorder may take for itself."""

    overhead_budget: float = Field(
        default=0.02,
        gt=0,
        le=100,
        description="The share of a step's time that digests may take. If they take more, they "
        "are recorded at every 2nd, 4th, 8th, ... step. The first step, the last and every loss "
        "are always recorded.",
    )
    free_seconds: float = Field(
        default=2.0,
        ge=0,
        le=3600,
        description="Digests may take this many seconds of a whole run, however short its steps "
        "are, so that every step of a short training is observed.",
    )
