"""A number of a metric, written so that reading it gives the same bits back."""

from __future__ import annotations

import math

from pydantic import Field, model_validator

from gate.text.records_document import Document

MAX_STEP = 2**53


class Point(Document):
    """One number at one step; `hex` is the value, `decimal` lets a person read it."""

    step: int = Field(ge=0, le=MAX_STEP)
    decimal: str = Field(max_length=40)
    hex: str = Field(max_length=40)

    @model_validator(mode="after")
    def _same_number(self) -> Point:
        try:
            value = float.fromhex(self.hex)
        except OverflowError as error:
            message = f"{self.hex} is beyond what a float holds"
            raise ValueError(message) from error
        shown = float(self.decimal)
        # NaN equals nothing, not even itself
        if shown != value and not (math.isnan(shown) and math.isnan(value)):
            message = f"decimal {self.decimal} is not the number {self.hex}"
            raise ValueError(message)
        # one text for each number: so a series can be kept as numbers and written as it was read
        if (self.decimal, self.hex) != (repr(value), value.hex()):
            message = f"{self.decimal}, {self.hex} has to be written {value!r}, {value.hex()}"
            raise ValueError(message)
        return self

    @classmethod
    def of(cls, step: int, value: float) -> Point:
        """Write a float so that reading it gives the same bits back."""
        return cls(step=step, decimal=repr(value), hex=value.hex())

    @property
    def value(self) -> float:
        """The number itself."""
        return float.fromhex(self.hex)
