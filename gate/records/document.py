"""The common root of every record that is written to or read from a file."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    """A frozen record with no unknown keys and no silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
