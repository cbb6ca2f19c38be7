"""The documents of a study: set-ups of one commit over the same seeds, and what differs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from gate.comparison.level_records import Performance, Sample
from gate.comparison.measurements import Provenance, SpeedRatio
from gate.evidence.columns import MAX_STEP
from gate.evidence.step_work import FinalValue
from gate.text.document import Document
from gate.training.runs import RunMode

MAKE_AGAIN: Final = "Make the study again."
STUDY_SCHEMA: Final = "repro-gate.study/1"
MOST_ARMS: Final = 10
MOST_RUNS: Final = 200
MAX_CURVES: Final = 12
MAX_POINTS: Final = 200
MAX_METRICS: Final = 100
Finite = Annotated[float, Field(allow_inf_nan=False)]
Maybe = Finite | None
Column = Annotated[tuple[Maybe, ...], Field(max_length=MAX_POINTS)]
Name = Annotated[str, Field(max_length=200)]
Step = Annotated[int, Field(ge=0, le=MAX_STEP)]


class StudyKind(StrEnum):
    """What was studied: many seeds of one set-up, several set-ups, or several numbers of ranks."""

    SEEDS = "seeds"
    ARMS = "arms"
    SCALING = "scaling"


class StudyRun(Document):
    """One run; runs with the same number in `result` (from 1) are equal, bit for bit.

    `wall_seconds` is the time of the whole process. `step_seconds` is the median steady step, None
    where none was timed. Memory is the peak in bytes, 0 where unknown. `values` are the last values
    of the metrics.
    """

    label: str
    arm: str
    seed: int
    result: int
    steps: int
    wall_seconds: float
    step_seconds: Maybe = None
    peak_memory_bytes: int
    device_memory_bytes: int
    values: Annotated[tuple[FinalValue, ...], Field(max_length=MAX_METRICS)]


class MetricOverSeeds(Document):
    """A metric's last value over the seeds; `low` and `high` are the 95 % interval of its mean.

    `reason` says why there is no sample.
    """

    metric: Name
    step: int | None = None
    sample: Sample | None = None
    low: Maybe = None
    high: Maybe = None
    reason: str = ""


class MetricCurve(Document):
    """A metric over the steps: lowest, mean and highest over the seeds; None is not finite."""

    metric: Name
    steps: Annotated[tuple[Step, ...], Field(max_length=MAX_POINTS)]
    low: Column
    mean: Column
    high: Column

    @model_validator(mode="after")
    def _a_row_each_step(self) -> Self:
        if {len(self.low), len(self.mean), len(self.high)} != {len(self.steps)}:
            message = "low, mean and high need a value for each of steps"
            raise ValueError(message)
        return self


class StudyArm(Document):
    """One set-up; `ranks` is the number of processes that its runs reported.

    `samples_per_step` is rank 0's, None where unknown. `moved` names the parts of the environment
    that differ from the first arm's. `ignores_seed`: all seeds gave one result.
    """

    name: str
    command: tuple[str, ...]
    ranks: int = Field(ge=1)
    ignores_seed: bool
    performance: Performance
    samples_per_step: Maybe = None
    metrics: Annotated[tuple[MetricOverSeeds, ...], Field(max_length=MAX_METRICS)]
    curves: Annotated[tuple[MetricCurve, ...], Field(max_length=MAX_CURVES)]
    moved: tuple[str, ...] = ()


class Contrast(StrEnum):
    """What the seeds show about a difference; `not-shown` does not prove equality."""

    EQUAL = "equal"
    DIFFERENT = "different"
    NOT_SHOWN = "not-shown"
    UNDECIDED = "undecided"


class MetricContrast(Document):
    """A metric's difference from the first arm, over pairs of one seed, in the metric's unit.

    `low` and `high` are the 95 % interval of the mean `difference`. `first_step` is the first step
    at which any pair differs. `reason` says why nothing could be decided.
    """

    metric: Name
    state: Contrast
    difference: Maybe = None
    low: Maybe = None
    high: Maybe = None
    first_step: int | None = None
    reason: str = ""


class ArmContrast(Document):
    """An arm compared with the first one.

    `equal_pairs` of the `pairs` of one seed are equal, bit for bit. `efficiency` is the work per
    second of a rank divided by that of a rank of the first arm, with its 95 % interval. `reason`
    says why it is not known.
    """

    arm: str
    over: str
    pairs: int
    equal_pairs: int
    metrics: Annotated[tuple[MetricContrast, ...], Field(max_length=MAX_METRICS)]
    speed: SpeedRatio
    efficiency: Maybe = None
    efficiency_low: Maybe = None
    efficiency_high: Maybe = None
    reason: str = ""


class StudyDocument(Document):
    """The file `study.json`, which judges nothing; `order` lists the runs as they were made."""

    schema_version: Literal["repro-gate.study/1"] = STUDY_SCHEMA
    kind: StudyKind
    provenance: Provenance
    mode: RunMode
    seeds: Annotated[tuple[int, ...], Field(max_length=MOST_RUNS)]
    order: Annotated[tuple[str, ...], Field(max_length=MOST_RUNS)]
    arms: Annotated[tuple[StudyArm, ...], Field(min_length=1, max_length=MOST_ARMS)]
    runs: Annotated[tuple[StudyRun, ...], Field(max_length=MOST_RUNS)]
    contrasts: Annotated[tuple[ArmContrast, ...], Field(max_length=MOST_ARMS)] = ()
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _others_over_the_first(self) -> Self:
        """Refuse arms and contrasts that do not match.

        The views rely on them, and anybody may have written the file.
        """
        first, *others = (arm.name for arm in self.arms)
        if (self.kind is StudyKind.SEEDS) is bool(others):
            message = "arms: one for kind seeds, two or more for any other"
            raise ValueError(message)
        if [(contrast.arm, contrast.over) for contrast in self.contrasts] != [
            (name, first) for name in others
        ]:
            message = "contrasts: one for each arm but the first, in their order, over the first"
            raise ValueError(message)
        return self

    def runs_of(self, arm: str) -> tuple[StudyRun, ...]:
        """Return the runs of an arm, in the order of the seeds."""
        return tuple(run for run in self.runs if run.arm == arm)
