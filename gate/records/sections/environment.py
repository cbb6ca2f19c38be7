"""What `repro-gate.yml` may say about what is installed: section `environment`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gate.records.document import Document

NamePattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9*?\[\]!._-]{1,200}$")]


class EnvironmentSettings(Document):
    """Which installed packages count."""

    ignore: tuple[NamePattern, ...] = Field(
        default=(),
        max_length=200,
        description="Shell-style patterns of packages whose version may move without any effect "
        "on what is compared, for example `tqdm` or `opentelemetry-*`. What the training does not "
        "import never counts.",
    )
