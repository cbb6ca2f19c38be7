"""What a training gives with another seed, or as a variant of itself: its last values alone."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, Field

from gate.evidence.point import Point
from gate.text.records_document import Document

MAX_FINAL_VALUES: Final = 100
# of twenty seeds, each of ten variants
MAX_SEED_RESULTS: Final = 200


class FinalValue(Document):
    """The last value of a metric."""

    metric: str = Field(min_length=1, max_length=200)
    point: Point


class SeedResult(Document):
    """The last value of each metric with one seed; `variant` is empty for train.command itself.

    `digest` is the SHA-256 of every value of every metric and of the state: equal for results that
    are equal bit for bit.
    """

    variant: str = Field(default="", max_length=20)
    seed: int = Field(ge=0, lt=2**32)
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    values: Annotated[tuple[FinalValue, ...], Field(max_length=MAX_FINAL_VALUES)]

    def value(self, metric: str) -> Point | None:
        """The last value of a metric, None where it has none."""
        return next((one.point for one in self.values if one.metric == metric), None)


def _each_once(results: tuple[SeedResult, ...]) -> tuple[SeedResult, ...]:
    """Refuse two results of one seed: they would count as two, and are one."""
    if len({(one.variant, one.seed) for one in results}) < len(results):
        message = "holds two results of one seed"
        raise ValueError(message)
    return results


SeedResults = Annotated[
    tuple[SeedResult, ...], Field(max_length=MAX_SEED_RESULTS), AfterValidator(_each_once)
]
