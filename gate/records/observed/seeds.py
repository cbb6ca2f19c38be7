"""What a training gives with another seed, or as a variant of itself: its last values alone."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from gate.records.document import Document
from gate.records.observed.point import Point
from gate.records.runs import RunRecord
from gate.records.sections.levels import MOST_SEEDS, MOST_VARIANTS, Seed

MAX_FINAL_VALUES: Final = 100
MAX_SEED_RESULTS: Final = MOST_SEEDS * MOST_VARIANTS


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
    seed: Seed
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    values: Annotated[tuple[FinalValue, ...], Field(max_length=MAX_FINAL_VALUES)]

    def value(self, metric: str) -> Point | None:
        """The last value of a metric, None where it has none."""
        return next((one.point for one in self.values if one.metric == metric), None)


class SeededRun(Document):
    """A strict run with a seed of its own; `not_finite` says which number is NaN or infinite."""

    run: RunRecord
    result: SeedResult
    not_finite: str = Field(default="", max_length=400)


SeedResults = Annotated[tuple[SeedResult, ...], Field(max_length=MAX_SEED_RESULTS)]
SeededRuns = Annotated[tuple[SeededRun, ...], Field(max_length=MAX_SEED_RESULTS)]
