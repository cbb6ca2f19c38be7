"""The numbers of a metric."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

from gate.evidence.columns import FLOAT, SIGNED, NumberRows
from gate.evidence.point import MAX_STEP, Point


class Points(NumberRows[Point]):
    """Steps and values in their order; every bit of a value is kept, but NaN is one value.

    Two are equal when all bits are: NaN equals NaN, and 0.0 is not -0.0.
    """

    __slots__ = ()
    record = Point
    kinds: ClassVar = (SIGNED, FLOAT)

    @property
    def values(self) -> memoryview[float]:
        """The numbers alone; not to be written to."""
        return self.column(1)

    def pairs(self) -> Iterator[tuple[int, float]]:
        """Each step with its number."""
        return zip(self.steps, self.values, strict=True)

    def same_steps(self, other: Points) -> bool:
        """Whether both have the same steps in the same order."""
        return self.steps == other.steps

    @staticmethod
    def taken(step: int, value: float) -> tuple[int, float]:
        """NaN has no sign or payload here: a point cannot have them either."""
        if not 0 <= step <= MAX_STEP:
            message = f"a step is below 0 or above {MAX_STEP}"
            raise ValueError(message)
        return step, math.nan if math.isnan(value) else value

    @staticmethod
    def row_of(record: Point) -> tuple[int, float]:
        """Step and value."""
        return record.step, record.value

    @staticmethod
    def row_of_plain(record: dict[str, Any]) -> tuple[int, float]:
        """Step and value of what `plain_of` gave."""
        step, text = record["step"], record["hex"]
        value = float.fromhex(text)
        # whatever is not exactly what `plain_of` gives is left to the record to take or refuse
        plain = type(step) is int and record.keys() == POINT_KEYS
        if not plain or (repr(value), value.hex()) != (record["decimal"], text):
            message = "is no plain point"
            raise ValueError(message)
        return step, value

    @staticmethod
    def plain_of(step: int, value: float) -> dict[str, Any]:
        """A point as JSON has it."""
        return {"step": step, "decimal": repr(value), "hex": value.hex()}

    @staticmethod
    def line_of(step: int, value: float) -> str:
        """A point as a line of JSON."""
        return f'{{"decimal": "{value!r}", "hex": "{value.hex()}", "step": {step}}}'

    @staticmethod
    def record_of(step: int, value: float) -> Point:
        """The point."""
        return Point.of(step, value)


POINT_KEYS = frozenset(Point.model_fields)
