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
        description="Part of a step's time that digests may take. Beyond it they are taken at "
        "every 2nd, 4th, 8th, ... step; the first, the last and every loss are always recorded.",
    )
    free_seconds: float = Field(
        default=2.0,
        ge=0,
        le=3600,
        description="Digests may take this long in a whole run, whatever its steps take: a smoke "
        "training is short, and every step observed is evidence.",
    )
