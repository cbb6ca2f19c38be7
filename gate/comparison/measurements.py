"""The documents of measurements: cost per knob, noise of default mode, what a result depends on."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from gate.comparison.differences import (
    CostState,
    EnvironmentChange,
    Event,
    OptimizerSettingChange,
    TensorDelta,
    ToleranceUse,
)
from gate.comparison.level_records import Performance
from gate.data.data_sets import DataDigests, digests_of
from gate.evidence.run_evidence import SHA256_PATTERN, EvidenceSet, FloatType
from gate.settings.levels import Tolerance
from gate.settings.policy_change import PolicyChange
from gate.text.document import Document, Timestamp
from gate.training.environment import Environment
from gate.training.runs import Commit, RunMode

COMPARED_SCHEMA: Final = "repro-gate.compare/1"
MAX_METRICS: Final = 200
MAX_VALUES: Final = 1000
MAX_TENSORS: Final = 500
MAX_PLACES: Final = 20
Values = Annotated[tuple[str | None, ...], Field(max_length=MAX_VALUES)]


class Closeness(StrEnum):
    """How base and head relate, by the tolerances of the settings.

    `not-comparable`: steps, metrics or tensors differ, so some numbers have no partner.
    """

    EQUAL = "equal"
    WITHIN_TOLERANCE = "within-tolerance"
    APART = "apart"
    NOT_COMPARABLE = "not-comparable"


class ComparedSide(Document):
    """One of the two compared commits; `name` is what the caller called it.

    `strict_results` and `default_results` count the distinct results, bit for bit, of `runs` runs
    each: 1 means that the commit repeats. `seeded_at` are lines of the script that seed a
    generator.
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

    `base_values` and `head_values` are decimals at `steps`, evenly spaced for a long series, None
    where a side has no value. `first_step` and the largest differences cover all points that both
    sides have. They are None where no bit differs; a difference is also None where float64 has no
    finite number for it. `fault` says what has no partner.
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
    """The speed of head over base in one mode: ratio of median steady steps, 95 % interval.

    Each `..._step_seconds` is the geometric mean of one side's medians over the rounds; head
    divided by base is `ratio`. `control_low` and `control_high` bound one run over another of its
    own kind, which is the noise of this machine. A ratio is `measured` when its interval is outside
    these bounds. All are None when not measurable; `reason` says why a ratio is not measured.
    `memory_ratio` compares peak memory.
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
    """The file `compare.json`; it judges nothing.

    `closeness` compares the first strict run of each side with all strict runs of the other.
    Numbers are those of the first ones. Both sides ran under the settings of the work tree.
    `settings_changes` are what the base commit's own file sets differently, as its earlier text.
    `order` lists the runs as they were made. `environment` is head's.
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

    @model_validator(mode="after")
    def _both_sides_of_each_ratio(self) -> Self:
        """Refuse a file without both sides of each ratio.

        The views rely on them, and anybody may have written the file.
        """
        timed = {(measured.commit, measured.mode) for measured in self.performance}
        if not timed >= {(commit, ratio.mode) for ratio in self.ratios for commit in Commit}:
            message = "performance: one of base and head for each mode of ratios"
            raise ValueError(message)
        return self


COST_SCHEMA: Final = "repro-gate.cost/1"
NOISE_SCHEMA: Final = "repro-gate.noise/1"
CALIBRATION_SCHEMA: Final = "repro-gate.calibration/1"
MAX_DISTANCE_CLASSES: Final = 8195
# The sum of the counts of all reruns stays below 2**63.
Count = Annotated[int, Field(ge=0, le=2**48)]


class Provenance(Document):
    """What was measured, where and when: a figure without its provenance means nothing.

    `data` has the declared data, and what preprocessing made of it.
    """

    commit: str
    changed_files: tuple[str, ...] = ()
    created_at: Timestamp
    settings_digest: str = Field(pattern=SHA256_PATTERN)
    training_digest: str = Field(pattern=SHA256_PATTERN)
    isolation: str
    environment: Environment
    data: DataDigests = ()


def provenance_of(evidence: EvidenceSet, isolation: str) -> Provenance:
    """Return where a measurement was made: commit, settings, and the first run's environment."""
    return Provenance(
        commit=evidence.commit,
        changed_files=evidence.changed_files,
        created_at=evidence.created_at,
        settings_digest=evidence.settings_digest,
        training_digest=evidence.training_digest,
        isolation=isolation,
        environment=evidence.runs[0].environment,
        data=digests_of(evidence.data),
    )


class ArmFigures(Document):
    """One arm of a cost measurement: its knobs, and medians over its runs.

    `distinct_results` counts distinct results, bit for bit. Unknown memory is 0, and an unknown
    cold start is None.
    """

    name: str
    knobs: tuple[str, ...]
    runs: int
    step_seconds: float | None
    cold_start_seconds: float | None
    peak_memory_bytes: int
    device_memory_bytes: int
    distinct_results: int


class Price(Document):
    """The cost of one arm over a different one: the ratio of median steps, with a 95 % interval.

    The ratios are None when not measurable; `reason` says why a price is not `measured`.
    """

    arm: str
    over: str
    state: CostState
    reason: str = ""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    memory_ratio: float | None = None


class KnobState(StrEnum):
    """The result for a knob in the search for the minimal sufficient set."""

    NEEDED = "needed"
    KEPT = "kept"
    DROPPED = "dropped"
    OFF = "off"
    NOT_APPLICABLE = "not applicable"


class KnobPrice(Document):
    """The cost of one knob, what became of it, and one sentence why."""

    knob: str
    price: Price | None
    state: KnobState
    reason: str


class MinimalSet(Document):
    """The minimal sufficient set: knobs with which this workload was still equal, bit for bit.

    `equal_runs` counts the runs of exactly this set that agreed, including the one that verified
    it.
    """

    knobs: tuple[str, ...]
    dropped: tuple[str, ...]
    equal_runs: int
    verified: bool
    same_bits_as_strict: bool


class CostDocument(Document):
    """The file `cost.json`."""

    schema_version: Literal["repro-gate.cost/1"] = COST_SCHEMA
    provenance: Provenance
    rounds: int
    warmup_steps: int
    steps_used: int
    order: tuple[str, ...]
    arms: tuple[ArmFigures, ...]
    control: Price
    prices: tuple[Price, ...]
    judged_arm: str
    budget_percent: float | None = None
    over_budget: bool = False
    attribution: tuple[KnobPrice, ...] = ()
    minimal: MinimalSet | None = None


class MetricNoise(Document):
    """How far a metric moves between reruns of the same default training.

    `largest_gap` is the widest range over the runs at any step, and `gap_step` is that step.
    `tolerance` is the smallest difference that is meaningful; see `gate.comparison.calibration`.
    """

    name: str
    dtype: FloatType
    points: int
    largest_gap: float
    gap_step: int
    largest_relative_gap: float | None
    final_gap: float
    largest_deviation: float
    tolerance: float
    at_floor: bool


class UlpQuantile(Document):
    """A share of the weights, and the distance in units in the last place that it stays within."""

    share: float
    distance: int


class WeightDistance(Document):
    """The final weights of one rerun against the first, as the reading process reports them.

    `differing` of the `elements` have different bits. `relative_l2` is None where float64 cannot
    hold it. `distances` counts elements by distance in units in the last place, in the classes of
    `gate.comparison.tensor_numbers`, up to the last class that is not empty.
    """

    elements: Count
    differing: Count
    not_finite: Count
    not_compared: tuple[str, ...] = ()
    relative_l2: float | None = Field(ge=0, allow_inf_nan=False)
    largest_distance: int = Field(ge=0, lt=2**64)
    distances: Annotated[tuple[Count, ...], Field(max_length=MAX_DISTANCE_CLASSES)]


class WeightNoise(Document):
    """The final weights of every rerun against the first; a norm that overflows float64 is None."""

    elements: int
    elements_that_differ: int
    not_finite: int
    not_compared: tuple[str, ...] = ()
    relative_l2: tuple[float | None, ...]
    largest_relative_l2: float | None
    ulp: tuple[UlpQuantile, ...]


class ReductionSpread(Document):
    """The workload's own gradients, summed in float32 in many orders.

    `worst` and `median` are ranges of the sums divided by the sum of magnitudes, over all tensors.
    `worst_of_sum` divides the worst range by the sum itself, None when that is zero.
    """

    tensors: int
    elements: int
    orders: int
    worst_tensor: str
    worst: float
    median: float
    worst_of_sum: float | None
    most_distinct_sums: int


ALL_REDUCE_SCHEMA: Final = "repro-gate.all-reduce/1"
Part = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class GrownSpread(Document):
    """The spread with cancelling summands that are `10 ** decades` as large as the gradients."""

    decades: int = Field(ge=0, le=30)
    spread: Part | None


class AllReduceSpread(Document):
    """The first gradients, all-reduced by real ranks on a busy machine, as rank 0 reported it.

    Each of the `repetitions` was made twice. Every rank used its own gradients, then those of a
    different rank, as a different placement of ranks would. `same_results` and `placed_results` are
    the most distinct results of one tensor without and with that. `spread` is the widest range of
    an element, `deviation` its largest standard deviation and `error` its largest distance from the
    exact sum, each divided by the summed magnitudes. `skipped` tensors are not finite, or have
    different sizes on different ranks.
    """

    schema_version: Literal["repro-gate.all-reduce/1"] = ALL_REDUCE_SCHEMA
    ranks: int = Field(ge=2, le=64)
    backend: Literal["gloo", "nccl"]
    repetitions: int = Field(ge=1, le=10_000)
    tensors: int = Field(ge=0, le=2**31)
    skipped: int = Field(ge=0, le=2**31)
    elements: int = Field(ge=0, le=2**48)
    same_results: int = Field(ge=0, le=20_000)
    placed_results: int = Field(ge=0, le=20_000)
    worst_tensor: str = Field(max_length=200)
    spread: Part | None
    deviation: Part | None
    error: Part | None
    growth: Annotated[tuple[GrownSpread, ...], Field(max_length=30)]


class NoiseDocument(Document):
    """The file `noise.json`; `all_reduce` is present where ranks were requested.

    `undetected_share` bounds the share of runs that may differ although none of these did (95 %
    confidence); None when some did.
    """

    schema_version: Literal["repro-gate.noise/1"] = NOISE_SCHEMA
    provenance: Provenance
    runs: int
    distinct_results: int
    undetected_share: float | None
    first_diverging_step: int | None
    tolerance_factor: float
    metrics: tuple[MetricNoise, ...]
    weights: WeightNoise
    reduction: ReductionSpread | None
    all_reduce: AllReduceSpread | None = None
    snippet: str
    notes: tuple[str, ...] = ()


class CalibratedTolerance(Document):
    """A tolerance derived for one metric and range of steps, and what it would have caught.

    `points` is the number of steps in the range. `widest_step` is where the runs scatter most.
    """

    rule: Tolerance
    points: int
    widest_step: int
    use: ToleranceUse


class CalibrationDocument(Document):
    """The file `calibration.json`.

    `measured` describes the results of the `runs`, which came from `environments` different
    environments. `block` is the YAML for repro-gate.yml, empty where no metric moved.
    """

    schema_version: Literal["repro-gate.calibration/1"] = CALIBRATION_SCHEMA
    provenance: Provenance
    measured: str
    runs: int
    environments: int
    confidence: float
    tolerances: tuple[CalibratedTolerance, ...]
    block: str
    notes: tuple[str, ...] = ()


SHAKEN_SCHEMA: Final = "repro-gate.shake/1"
MAX_READINGS: Final = 20
MAX_TEXT: Final = 1000


class ShakeResult(StrEnum):
    """The result of a variation.

    - `equal`: the result is the same, bit for bit.
    - `differs`: the result is different.
    - `fails`: the run failed.
    - `not-tried`: nothing was varied, or nothing could be compared.
    """

    EQUAL = "equal"
    DIFFERS = "differs"
    FAILS = "fails"
    NOT_TRIED = "not-tried"


class ReadingLine(Document):
    """A line of the training's code that read what was varied, and the call it made.

    `step` is the optimizer step at which it was first seen. `in_code`: the line was found by
    scanning the file, so it is not known whether it ran.
    """

    place: str
    call: str
    step: int
    in_code: bool = False


class ShakenThing(Document):
    """One variation; `first` is the first divergence from the run without it.

    `readings` are the lines seen up to that divergence, empty where the result is equal. `reason`
    says why it was not tried, or how the run failed.
    """

    name: str
    changes: str
    varied: str = ""
    result: ShakeResult
    first: Event | None = None
    readings: Annotated[tuple[ReadingLine, ...], Field(max_length=MAX_READINGS)] = ()
    reason: str = Field(default="", max_length=MAX_TEXT)
    remedy: str = ""
    wall_seconds: float | None = None

    @property
    def depends(self) -> bool:
        """Whether the result depends on what was varied."""
        return self.result in {ShakeResult.DIFFERS, ShakeResult.FAILS}

    @property
    def tried(self) -> bool:
        """Whether the variation gave a result."""
        return self.result is not ShakeResult.NOT_TRIED


class ShakenTraining(Document):
    """The file `shake.json`: each variation against the first of two unvaried runs.

    `repeatable` is False where unvaried runs differ, at `first`. Then no difference can be
    attributed to a variation, and `things` is ignored. Seconds are wall-clock time.
    """

    schema_version: Literal["repro-gate.shake/1"] = SHAKEN_SCHEMA
    provenance: Provenance
    repeatable: bool
    first: Event | None = None
    things: tuple[ShakenThing, ...]
    budget_seconds: float | None = None

    @property
    def dependent(self) -> tuple[ShakenThing, ...]:
        """The variations on which the result depends."""
        return tuple(thing for thing in self.things if thing.depends)

    @property
    def tried(self) -> tuple[ShakenThing, ...]:
        """The variations that were made and compared."""
        return tuple(thing for thing in self.things if thing.tried)
