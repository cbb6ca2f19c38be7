"""What `repro-gate.yml` may ask a result to be: the same numbers, or good enough ones."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from gate.records.document import Document


class Level(StrEnum):
    """The least that passes."""

    NUMERICAL = "numerical"
    FUNCTIONAL = "functional"


class ReachedLevel(StrEnum):
    """What a result came to, the strictest first."""

    BITWISE = "numerical-bitwise"
    TOLERANCE = "numerical-tolerance"
    FUNCTIONAL = "functional"


class Threshold(Document):
    """Bounds of a metric's last value, both included."""

    min: float | None = Field(
        default=None, allow_inf_nan=False, description="The least that its last value may be."
    )
    max: float | None = Field(
        default=None, allow_inf_nan=False, description="The most that its last value may be."
    )

    @model_validator(mode="after")
    def _bounds_something(self) -> Self:
        if self.min is None and self.max is None:
            message = "needs min or max, for example {min: 0.9}"
            raise ValueError(message)
        if self.min is not None and self.max is not None and self.min > self.max:
            message = f"no number is at least {self.min:g} and at most {self.max:g}"
            raise ValueError(message)
        return self
