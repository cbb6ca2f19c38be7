"""What `repro-gate.yml` may say about the diagnosis: section `diagnosis`."""

from __future__ import annotations

from pydantic import Field

from gate.text.records_document import Document


class DiagnosisSettings(Document):
    """What the gate does to find a cause once the outcome is known."""

    escalate: bool = Field(
        default=True,
        description="After a difference, run the training twice more up to the first step that "
        "differs, and trace every operator call. Where runs of one commit differ, then try "
        "settings that may make them agree, one at a time. The outcome does not change.",
    )
    budget_seconds: float | None = Field(
        default=None,
        gt=0,
        le=86_400,
        allow_inf_nan=False,
        description="The most seconds that these runs may take together. Default: as long as all "
        "other runs of the call took, those that were left out counted too, and 60 at least.",
    )
