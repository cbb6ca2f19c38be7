"""Two commits run beside each other on one machine: the file `compare.json`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from gate.comparison.differences import (
    CostState,
    EnvironmentChange,
    Event,
    OptimizerSettingChange,
    TensorDelta,
)
from gate.comparison.measured_performance import Performance
from gate.evidence.run_evidence import SHA256_PATTERN
from gate.settings.records_policy_files import PolicyChange
from gate.text.records_document import Document, Timestamp
from gate.training.environment import Environment
from gate.training.runs import RunMode

COMPARED_SCHEMA: Final = "repro-gate.compare/1"
MAX_METRICS: Final = 200
MAX_VALUES: Final = 1000
MAX_TENSORS: Final = 500
MAX_PLACES: Final = 20
Values = Annotated[tuple[str | None, ...], Field(max_length=MAX_VALUES)]


class Closeness(StrEnum):
    """What base and head are to each other, by the tolerances of the settings.

    `not-comparable`: other steps, metrics or tensors, so that some numbers have no partner.
    """

    EQUAL = "equal"
    WITHIN_TOLERANCE = "within-tolerance"
    APART = "apart"
    NOT_COMPARABLE = "not-comparable"


class ComparedSide(Document):
    """One of the two commits.

    `name` is what the caller called it. `strict_results` and `default_results` count results that
    are not equal bit for bit, over `runs` runs each: 1 is a commit that repeats. `seeded_at` are
    lines of the script that seed a generator, at most 20.
    """

    name: str
    commit: str
    changed_files: tuple[str, ...] = ()
    runs: int
    strict_results: int
    default_results: int
    checkpoint_digest: str
    seeded_at: Annotated[tuple[str, ...], Field(max_length=MAX_PLACES)] = ()


class MetricBeside(Document):
    """A metric of the first strict run of base and of head, side by side.

    `values_*` are decimals at `steps`, of a long series some, evenly spaced; None where a side has
    none there. `first_step` and the largest difference are over all points that both have; they
    are None where no bit differs, the latter also where float64 has no finite number for it.
    `fault` says what has no partner.
    """

    name: str
    source: str
    compared_points: int
    differing_points: int
    within: bool
    base_last: str = ""
    head_last: str = ""
    first_step: int | None = None
    largest_absolute: float | None = None
    largest_step: int | None = None
    largest_relative: float | None = None
    fault: str = ""
    steps: Annotated[tuple[int, ...], Field(max_length=MAX_VALUES)] = ()
    base_values: Values = ()
    head_values: Values = ()


class SpeedRatio(Document):
    """Head over base in one mode: ratio of median steady steps with its 95 % interval.

    Each `..._step_seconds` is the geometric mean of one side's medians over the rounds: head over
    base is `ratio`. `control_low` and `control_high` bound one run over another of its own kind,
    the noise of this machine; a ratio is `measured` when its interval lies outside. All are None
    when not measurable; `reason` says why a ratio is not measured. `memory_ratio` is of peak
    memory.
    """

    mode: RunMode
    state: CostState
    reason: str = ""
    rounds: int
    steps_used: int = 0
    base_step_seconds: float | None = None
    head_step_seconds: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    control_low: float | None = None
    control_high: float | None = None
    memory_ratio: float | None = None


class ComparedCommits(Document):
    """The file `compare.json`: nothing in it is judged.

    `closeness` rests on the first strict run of each side against all strict runs of the other;
    numbers are those of the first ones. Both sides ran under the settings of the work tree;
    `settings_changes` are what the base commit's own file says otherwise, as the text before.
    `order` are the runs as they were made. `environment` is head's.
    """

    schema_version: Literal["repro-gate.compare/1"] = COMPARED_SCHEMA
    closeness: Closeness
    repeatable: bool
    base: ComparedSide
    head: ComparedSide
    created_at: Timestamp
    settings_digest: str = Field(pattern=SHA256_PATTERN)
    training_digest: str = Field(pattern=SHA256_PATTERN)
    isolation: str
    seed: int
    rounds: int
    order: tuple[str, ...]
    first: Event | None = None
    base_steps: int
    head_steps: int
    metrics: Annotated[tuple[MetricBeside, ...], Field(max_length=MAX_METRICS)]
    metrics_omitted: int = 0
    compared_tensors: int
    differing_tensors: int
    tensors: Annotated[tuple[TensorDelta, ...], Field(max_length=MAX_TENSORS)] = ()
    optimizer_settings: tuple[OptimizerSettingChange, ...] = ()
    settings_changes: tuple[PolicyChange, ...] = ()
    environment: Environment
    environment_changes: tuple[EnvironmentChange, ...] = ()
    performance: tuple[Performance, ...]
    ratios: tuple[SpeedRatio, ...]
    notes: tuple[str, ...] = ()
