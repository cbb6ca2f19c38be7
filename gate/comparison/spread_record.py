"""Where one more value lies among a few."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from gate.text.records_document import Document

Finite = Annotated[float, Field(allow_inf_nan=False)]


class SpreadPlace(StrEnum):
    """Whose values make the spread: seeds of the package, runs of it, or seeds trained here."""

    SEEDS_THEN = "seeds-then"
    RUNS_THEN = "runs-then"
    SEEDS_HERE = "seeds-here"


class MetricSpread(Document):
    """A metric's last value against a prediction interval of 95 %.

    `value` is the one that is judged, of the other side than the `values` (their number) that make
    mean, standard deviation (of the sample), `low` and `high`.
    """

    metric: str
    place: SpreadPlace
    value: Finite
    values: int = Field(ge=2)
    mean: Finite
    deviation: Finite
    low: Finite
    high: Finite
    inside: bool
