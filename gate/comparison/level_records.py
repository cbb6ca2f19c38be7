"""The reported numbers: what levels were judged by, and how fast runs were."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from gate.settings.levels import Level, ReachedLevel
from gate.text.document import Document
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


# of both one-sided tests of an equivalence, and of the test of a pair of variants
ALPHA: Final = 0.05
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Agreement(StrEnum):
    """What the interval of a difference of means says of its margin.

    `undecided` reaches across the margin: neither is shown.
    """

    EQUIVALENT = "equivalent"
    DIFFERENT = "different"
    UNDECIDED = "undecided"


class Sample(Document):
    """The last values of a metric over seeds: how many, their mean and standard deviation (n - 1).

    Mean and deviation are in the metric's unit.
    """

    seeds: int
    mean: Finite
    deviation: Annotated[Finite, Field(ge=0)]


class TestedDifference(Document):
    """The difference of two means (head - baseline), tested against a margin.

    All but `freedom`, `p` and `seeds_needed` are in the metric's unit. `low` and `high` are the
    90 % interval of the difference, `shown` is the smallest margin that these seeds would have
    shown to hold. `seeds_needed`, on each side, would decide if mean and spread stayed what they
    are; None where it is decided, or where more than 1,000 would be needed.
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
    """A metric's verdict; `reason` says why nothing could be tested, and `tested` is None then."""

    metric: str
    agreement: Agreement
    reason: str = ""
    baseline: Sample | None = None
    head: Sample | None = None
    tested: TestedDifference | None = None


class RankedVariant(Document):
    """A variant and its metric on both sides; they are in the baseline's order, best first."""

    name: str
    baseline: Sample
    head: Sample


class PairState(StrEnum):
    """What became of two variants that stand beside each other in the baseline's ranking.

    `open`: the baseline does not separate them, so either may lead.
    """

    HELD = "held"
    SWAPPED = "swapped"
    NOT_SEPARATED = "not-separated"
    OPEN = "open"


class RankedPair(Document):
    """Two neighbours of the baseline's ranking; each p is one-sided, paired over seeds."""

    better: str
    worse: str
    state: PairState
    baseline_p: Finite
    head_p: Finite


class LevelResult(Document):
    """What came of the level that the policy asks for, where runs of several seeds decide it.

    `problem` says in one line why it was not reached, and is empty where it was.
    """

    asked: Level
    problem: str
    equivalences: tuple[Equivalence, ...] = ()
    metric: str = ""
    variants: tuple[RankedVariant, ...] = ()
    pairs: tuple[RankedPair, ...] = ()

    @property
    def reached(self) -> ReachedLevel | None:
        """The level, where it was reached; what compared nothing never reaches one."""
        if self.problem or not (self.equivalences or self.pairs):
            return None
        return (
            ReachedLevel.STATISTICAL if self.asked is Level.STATISTICAL else ReachedLevel.SCIENTIFIC
        )
