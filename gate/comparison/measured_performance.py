"""How fast runs were, and how much that varied: told beside the numbers, never judged."""

from __future__ import annotations

from pydantic import Field

from gate.text.records_document import Document
from gate.training.runs import Commit, RunMode


class Performance(Document):
    """The runs of one commit in one mode, over their steps after the warm-up.

    `steps_per_second` and `samples_per_second` are sums of steps and of samples over the sum of
    seconds, of rank 0; samples are None where a batch had no known size. `step_seconds` is the
    mean, `median_step_seconds` the median of the runs' medians. `step_deviation_seconds` is the
    standard deviation of steps within a run, over all runs, and `step_variation` that over the mean
    (coefficient of variation); `run_deviation_seconds` and `run_variation` are the same of the
    runs' means, None for one run. Memory is the median peak of the runs, 0 where unknown. Where
    nothing could be measured, `reason` says why, and there is no time.
    """

    commit: Commit
    mode: RunMode
    runs: int = Field(ge=1)
    steps_used: int = Field(default=0, ge=0)
    reason: str = ""
    steps_per_second: float | None = None
    samples_per_second: float | None = None
    step_seconds: float | None = None
    median_step_seconds: float | None = None
    step_deviation_seconds: float | None = None
    step_variation: float | None = None
    run_deviation_seconds: float | None = None
    run_variation: float | None = None
    peak_memory_bytes: int = 0
    device_memory_bytes: int = 0

    @property
    def kind(self) -> str:
        """Whose runs these are, for a reader: `head, strict mode`."""
        return f"{self.commit.value}, {self.mode.value} mode"
