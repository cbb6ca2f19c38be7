"""What `repro-gate.yml` may say about tolerances, and where a measured one comes from."""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache
from typing import Final, Self

from pydantic import Field, field_validator, model_validator

from gate.text.records_document import Document

EVERY: Final = "every"
FINAL: Final = "final"
STEPS = re.compile(r"([0-9]{1,9})-([0-9]{1,9})", re.ASCII)


# asked for every point that differs, of a handful of texts
@lru_cache(maxsize=256)
def steps_of(text: str) -> range | None:
    """The steps of a range such as `1-10`, both ends included; None for `every` and `final`.

    Raises `ValueError` for what is none of the three.
    """
    if text in {EVERY, FINAL}:
        return None
    match = STEPS.fullmatch(text)
    if match is None:
        message = f"must be every, final or a range of steps such as 1-10, not {text[:40]!r}"
        raise ValueError(message)
    first, last = map(int, match.groups())
    if first > last:
        message = f"the range {text} ends before it begins"
        raise ValueError(message)
    return range(first, last + 1)


class Direction(StrEnum):
    """Which way a metric moves when it gets better."""

    LOWER = "lower"
    HIGHER = "higher"


class Improvement(StrEnum):
    """What becomes of a metric that is better than its tolerance allows."""

    FAIL = "fail"
    PASS = "pass"  # noqa: S105 - a word of the settings


class Derivation(Document):
    """What the absolute limit was derived from: `factor` times the square root of 2 times `spread`.

    Whoever edits the limit and leaves this as it is gets a finding.
    """

    runs: int = Field(ge=2, le=1000, description="Number of results that were measured (n).")
    factor: float = Field(
        gt=0, allow_inf_nan=False, description="The tolerance factor k(n), rounded up."
    )
    spread: float = Field(
        gt=0,
        allow_inf_nan=False,
        description="The largest standard deviation at any step, in the metric's unit, rounded up.",
    )
    confidence: float = Field(
        gt=0.5, lt=1, description="How sure it is that the limit holds 95 % of all runs."
    )


class Tolerance(Document):
    """How far a metric may be from its baseline: within tolerance when any one limit holds."""

    metric: str = Field(
        min_length=1,
        max_length=200,
        description="Shell-style pattern of the metric's name, for example `*loss`.",
    )
    absolute: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="Limit of the absolute difference, |a - b|.",
    )
    relative: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="Limit of the relative difference, |a - b| / |baseline|.",
    )
    ulp: int = Field(
        default=0,
        ge=0,
        description="Limit of the difference in units in the last place of the metric's dtype.",
    )
    steps: str = Field(
        default=EVERY,
        max_length=40,
        description="Whether `every` step is judged, the `final` one only, or a range such as "
        "`1-10`. A step outside the range is left to the tolerances after this one.",
    )
    better_is: Direction | None = Field(
        default=None,
        description="`lower` or `higher`: which way the metric improves. The report then says "
        "whether a difference is better or worse.",
    )
    improvement: Improvement = Field(
        default=Improvement.FAIL,
        description="`pass` makes the tolerance one-sided: a metric that is better passes, by "
        "however much. It needs `better_is`. By default both directions count: a result that is "
        "better than expected is another result too.",
    )
    derived: Derivation | None = Field(
        default=None,
        description="What `absolute` was derived from, as `repro-gate baseline calibrate` writes "
        "it.",
    )

    @field_validator("steps")
    @classmethod
    def _known_steps(cls, value: str) -> str:
        steps_of(value)
        return value

    @model_validator(mode="after")
    def _one_sided_needs_a_side(self) -> Self:
        if self.improvement is Improvement.PASS and self.better_is is None:
            message = "improvement: pass needs better_is: lower or higher"
            raise ValueError(message)
        return self

    def decides(self, step: int) -> bool:
        """Whether a step falls to this tolerance; one that judges the end alone takes them all."""
        steps = steps_of(self.steps)
        return steps is None or step in steps

    def judges(self, step: int, last: int) -> bool:
        """Whether a difference at a step that it decides counts; `last` is the metric's last."""
        return self.steps != FINAL or step == last

    def better(self, expected: float, observed: float) -> bool | None:
        """Whether a metric improved; None where nothing says so, or it is equal or no number."""
        if self.better_is is None or not (observed < expected or observed > expected):
            return None
        return (observed < expected) == (self.better_is is Direction.LOWER)


class TensorLimit(Document):
    """How far weights and buffers may be from the baseline's where metrics may move."""

    relative: float = Field(
        ge=0,
        le=2,
        allow_inf_nan=False,
        description="Limit for each weight and buffer after the last step: the norm of the "
        "difference over the larger of the two norms, so `0.01` is 1 % of its size. It is "
        "estimated, within a factor of 2. A tensor without a known distance is outside. With `0` "
        "every tensor must be equal, bit for bit.",
    )
