"""What a gate call could have run and did not, and why."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from gate.text.records_document import Document


class Part(StrEnum):
    """Runs of one purpose."""

    DEFAULT_RUNS = "default-runs"
    STRICT_RUNS = "strict-runs"
    SEEDS = "seeds"
    OPERATOR_AUDIT = "operator-audit"


class WhyNotRun(StrEnum):
    """`not-priced`: `cost.when` asks for no price in this call; `runs-differ`: two strict runs.

    `not-finite`: a strict run has a number that never passes.
    """

    NOT_PRICED = "not-priced"
    RUNS_DIFFER = "runs-differ"
    NOT_FINITE = "not-finite"


class NotRun(Document):
    """So many runs of a part that were not made."""

    part: Part
    why: WhyNotRun
    runs: int = Field(ge=1)
