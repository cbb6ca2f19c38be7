"""The numbers of a metric: 16 bytes each, where a record for each takes hundreds."""

from __future__ import annotations

import math
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from itertools import starmap
from typing import Any, ClassVar, Final, Self

from gate.records.observed.columns.rows import Rows
from gate.records.observed.point import MAX_STEP, Point

# signed and eight bytes long; binary64
STEPS: Final = "q"
VALUES: Final = "d"
KEYS: Final = 3


class Points(Rows[Point]):
    """Points in their order; every bit of a value is kept, but NaN is one value.

    Two are equal when all bits are: NaN equals NaN, and 0.0 is not -0.0.
    """

    __slots__ = ("_steps", "_values")
    record: ClassVar[type[Point]] = Point

    def __init__(self, pairs: Iterable[tuple[int, float]] = ()) -> None:
        """Steps and values; `OverflowError` for a step that no point may have."""
        steps, values = array(STEPS), array(VALUES)
        for step, value in pairs:
            steps.append(step)
            # its sign and payload have no text, so a point cannot have them either
            values.append(value if value == value else math.nan)  # noqa: PLR0124 - asks for NaN
        self._steps, self._values = steps.tobytes(), values.tobytes()
        if steps and not 0 <= min(steps) <= max(steps) <= MAX_STEP:
            message = f"a step is below 0 or above {MAX_STEP}"
            raise OverflowError(message)

    @classmethod
    def of(cls, records: Iterable[Point]) -> Self:
        """Hold these points."""
        return cls((point.step, point.value) for point in records)

    @property
    def steps(self) -> memoryview[int]:
        """The steps alone; not to be written to."""
        return memoryview(self._steps).cast(STEPS)

    @property
    def values(self) -> memoryview[float]:
        """The numbers alone; not to be written to."""
        return memoryview(self._values).cast(VALUES)

    def pairs(self) -> Iterator[tuple[int, float]]:
        """Each step with its number."""
        return zip(self.steps, self.values, strict=True)

    def same_steps(self, other: Points) -> bool:
        """Whether both have the same steps in the same order."""
        return self._steps == other._steps

    def at(self, place: int) -> Point:
        """The point at a place from 0 on."""
        return Point.of(self.steps[place], self.values[place])

    def part(self, places: slice) -> Self:
        """Some of the points."""
        return type(self)(zip(self.steps[places], self.values[places], strict=True))

    @classmethod
    def of_plain(cls, records: list[Any]) -> Self:
        """Hold points as JSON has them; faults as the base has them."""
        return cls(map(_pair, records))

    def plain(self) -> Iterator[dict[str, Any]]:
        """Each point as JSON has it."""
        for step, value in self.pairs():
            yield {"decimal": repr(value), "hex": value.hex(), "step": step}

    def json_rows(self) -> Iterator[str]:
        """As the base does, several times faster."""
        return starmap(_json_row, self.pairs())

    def packed(self) -> list[Any]:
        """The bytes of both columns as base64, in this machine's order."""
        return [b64encode(column).decode("ascii") for column in (self._steps, self._values)]

    @classmethod
    def unpacked(cls, parts: list[Any]) -> Self:
        """What `packed` gave; `ValueError` and the like for what no points could be."""
        steps, values = (memoryview(b64decode(part, validate=True)) for part in parts)
        return cls(zip(steps.cast(STEPS), values.cast(VALUES), strict=True))

    def __len__(self) -> int:
        return len(self.steps)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Points):
            return NotImplemented
        return (self._steps, self._values) == (other._steps, other._values)

    def __hash__(self) -> int:
        return hash((self._steps, self._values))

    def __repr__(self) -> str:
        return f"Points({list(self.pairs())!r})"


def _pair(record: dict[str, Any]) -> tuple[int, float]:
    step, text = record["step"], record["hex"]
    value = float.fromhex(text)
    # whatever is not exactly what `plain` gives is left to the record itself to take or refuse
    plain = type(step) is int and len(record) == KEYS
    if not plain or (repr(value), value.hex()) != (record["decimal"], text):
        message = "is no plain point"
        raise ValueError(message)
    return step, value


def _json_row(step: int, value: float) -> str:
    return f'{{"decimal": "{value!r}", "hex": "{value.hex()}", "step": {step}}}'
