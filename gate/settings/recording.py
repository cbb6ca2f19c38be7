"""What `repro-gate.yml` may say about recording: section `record`."""

from __future__ import annotations

from pydantic import Field

from gate.text.records_document import Document


class RecordSettings(Document):
    """How much of a step's time the recorder may take for itself."""

    overhead_budget: float = Field(
        default=0.02,
        gt=0,
        le=100,
        description="The share of the steps' time that digests may take. One half is for what "
        "comes once and for the first ten steps, the other for all steps: if they take more, they "
        "are recorded at every 2nd, 4th, 8th, ... step. The first step, the last and every loss "
        "are always recorded.",
    )
    free_seconds: float = Field(
        default=2.0,
        ge=0,
        le=3600,
        description="Digests may take this many seconds of a whole run, however short its steps "
        "are: in a run of fewer than 100 steps on any of them, so that every step of a short "
        "training is observed; in a longer one on its first ten.",
    )
