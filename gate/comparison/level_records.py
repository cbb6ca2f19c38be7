"""The records of numbers that are reported: results of a level, and how fast runs were."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from gate.settings.levels import Level, ReachedLevel
from gate.text.document import Document
from gate.training.runs import Commit, RunMode


class Performance(Document):
    """The runs of one commit in one mode, over their steps after the warm-up.

    `steps_per_second` and `samples_per_second` divide the sums of rank 0's steps and samples by the
    sum of seconds. Samples are None where a batch had no known size. `step_seconds` is the mean,
    `median_step_seconds` the median of the runs' medians. `step_deviation_seconds` is the standard
    deviation of steps within a run, over all runs. `step_variation` divides it by the mean
    (coefficient of variation). `run_deviation_seconds` and `run_variation` are the same for the
    runs' means, None for one run. Memory is the median peak of the runs, 0 where unknown. If
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
        """The commit and mode of these runs for a reader: `head, strict mode`."""
        return f"{self.commit.value}, {self.mode.value} mode"


# The significance level of both one-sided tests of an equivalence, and of a test of two variants.
ALPHA: Final = 0.05
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Agreement(StrEnum):
    """What the interval of a difference of means shows about the margin.

    `undecided`: the interval crosses the margin, so neither equivalence nor difference is shown.
    """

    EQUIVALENT = "equivalent"
    DIFFERENT = "different"
    UNDECIDED = "undecided"


class Sample(Document):
    """The last values of a metric over seeds: their number, mean and standard deviation (n - 1).

    Mean and deviation are in the metric's unit.
    """

    seeds: int
    mean: Finite
    deviation: Annotated[Finite, Field(ge=0)]


class TestedDifference(Document):
    """The difference of two means (head - baseline), tested against a margin.

    All numbers but `freedom`, `p` and `seeds_needed` are in the metric's unit. `low` and `high` are
    the 90 % interval of the difference. `shown` is the smallest margin that these seeds would have
    met. `seeds_needed`, on each side, would decide if mean and spread stayed the same. It is None
    where the test is decided, or where more than 1,000 seeds would be needed.
    """

    difference: Finite
    margin: Finite
    low: Finite
    high: Finite
    shown: Finite
    freedom: Finite
    p: Finite
    seeds_needed: int | None = None


class Equivalence(Document):
    """The result for one metric; `tested` is None where `reason` says why nothing was tested."""

    metric: str
    agreement: Agreement
    reason: str = ""
    baseline: Sample | None = None
    head: Sample | None = None
    tested: TestedDifference | None = None


class RankedVariant(Document):
    """A variant with its metric on both sides; variants are in the baseline's order, best first."""

    name: str
    baseline: Sample
    head: Sample


class PairState(StrEnum):
    """The state of two variants that are neighbours in the baseline's ranking.

    `open`: the baseline does not separate them, so either may lead.
    """

    HELD = "held"
    SWAPPED = "swapped"
    NOT_SEPARATED = "not-separated"
    OPEN = "open"


class RankedPair(Document):
    """Two neighbours of the baseline's ranking; each p is one-sided and paired over seeds."""

    better: str
    worse: str
    state: PairState
    baseline_p: Finite
    head_p: Finite


class LevelResult(Document):
    """The result for the policy's level, where runs of several seeds decide it.

    `problem` says in one line why the level was not reached, and is empty where it was.
    """

    asked: Level
    problem: str
    equivalences: tuple[Equivalence, ...] = ()
    metric: str = ""
    variants: tuple[RankedVariant, ...] = ()
    pairs: tuple[RankedPair, ...] = ()

    @property
    def reached(self) -> ReachedLevel | None:
        """The level if it was reached; comparing nothing never reaches one (T4)."""
        if self.problem or not (self.equivalences or self.pairs):
            return None
        return (
            ReachedLevel.STATISTICAL if self.asked is Level.STATISTICAL else ReachedLevel.SCIENTIFIC
        )
