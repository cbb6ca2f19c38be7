"""How a difference goes on over the steps, once it is there."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from gate.evidence.point import MAX_STEP
from gate.text.records_document import Document

MAX_POINTS: Final = 16
Step = Annotated[int, Field(ge=0, le=MAX_STEP)]
Size = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class GrowthShape(StrEnum):
    """The curve that the difference follows; `UNCLEAR` where none fits, or several do.

    `CONSTANT`: the same amount at each step. `PROPORTIONAL`: the same part of the value. `STEADY`:
    a power of the steps since it began. `EXPONENTIAL`: by the same factor at each step.
    """

    CONSTANT = "constant"
    PROPORTIONAL = "proportional"
    STEADY = "steady"
    EXPONENTIAL = "exponential"
    UNCLEAR = "unclear"


class GrowthPoint(Document):
    """The difference at a step, in the metric's unit, and as a part of the expected value."""

    step: Step
    absolute: Size
    relative: Size | None = None


class Growth(Document):
    """The shape of one metric's difference, over `points_used` steps at which it is not zero.

    `factor` is by how much it grows a step where that is exponential, `power` that of the steps
    where it is steady. `until` is the step up to which the shape holds, where it levels off after
    it. `sentence` says it without a full stop; `points` are some of them, evenly spaced.
    """

    metric: str
    shape: GrowthShape
    sentence: str
    points_used: int
    first: GrowthPoint
    last: GrowthPoint
    factor: float | None = None
    power: float | None = None
    until: Step | None = None
    points: Annotated[tuple[GrowthPoint, ...], Field(max_length=MAX_POINTS)] = ()
