"""What determinism cost when a baseline's entry was made: for calls that measure no price."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gate.text.records_document import Document, Timestamp

PositiveRatio = Annotated[float, Field(gt=0, lt=1e6, allow_inf_nan=False)]


class RecordedPrice(Document):
    """Step time in strict mode over default mode, its 95 % interval, and the same of peak memory.

    `memory_ratio` is None where no memory was measured.
    """

    measured_at: Timestamp
    time_ratio: PositiveRatio
    low: PositiveRatio
    high: PositiveRatio
    memory_ratio: PositiveRatio | None = None
