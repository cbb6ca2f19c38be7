"""What `repro-gate.yml` may say about measuring: the cost of determinism and the noise floor."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gate.text.records_document import Document


class CostSettings(Document):
    """When and how the cost of determinism is measured."""

    when: Literal["always", "nightly", "never"] = Field(
        default="always",
        description="Which gate calls make default runs to measure the cost: `always` all, "
        "`nightly` those by a schedule, by hand or by a push to the default branch (so none of a "
        "pull request or a merge queue), `never` none. A call that makes none reports the cost "
        "that the baseline's entry was recorded with, and its date.",
    )
    rounds: int = Field(
        default=3,
        ge=1,
        le=50,
        description="Rounds of `repro-gate cost`. Each runs every arm once and the default mode "
        "twice. Fewer than three are inconclusive.",
    )
    warmup_steps: int = Field(
        default=5, ge=0, description="Steps at the start of a run that are not timed."
    )
    min_steps: int = Field(
        default=10, ge=2, description="With fewer timed steps than this the cost is not measurable."
    )
    budget_percent: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="The most that determinism may cost, in percent of the default step time. A "
        "pass fails only when even the lower bound of a measured cost is above it.",
    )

    def exceeded_by(self, low: float | None, *, measured: bool) -> bool:
        """Whether a cost breaks the budget: only its lower bound counts, and only when measured.

        `low` is a ratio, 1.04 for four percent.
        """
        if self.budget_percent is None or low is None or not measured:
            return False
        # the lower bound: a pull request is not stopped by what noise could have made
        return (low - 1) * 100 > self.budget_percent


class NoiseSettings(Document):
    """How the noise floor of the default mode is measured."""

    runs: int = Field(
        default=5,
        ge=2,
        le=100,
        description="How many times `repro-gate noise` runs the default mode.",
    )
