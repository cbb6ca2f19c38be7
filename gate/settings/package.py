"""What `package:` in `repro-gate.yml` may say."""

from __future__ import annotations

from pydantic import Field

from gate.text.records_document import Document


class PackageSettings(Document):
    """What the package holds beside the verdict and its evidence."""

    source: bool = Field(
        default=False,
        description="Pack the commit's files too, so that the package can be run again without a "
        "clone. Whoever has the package then has the code.",
    )
    checkpoint: bool = Field(
        default=True,
        description="Pack what the script saved itself (train.checkpoint) beside the captured "
        "state. Without it the package is smaller, and the file is known by its digest alone.",
    )
