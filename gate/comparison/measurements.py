"""What measuring found: the cost of determinism, knob by knob, and the noise of the default."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from gate.comparison.differences import CostState, ToleranceUse
from gate.evidence.run_evidence import SHA256_PATTERN, FloatType
from gate.settings.tolerances import Tolerance
from gate.text.records_document import Document, Timestamp
from gate.training.environment import Environment

COST_SCHEMA: Final = "repro-gate.cost/1"
NOISE_SCHEMA: Final = "repro-gate.noise/1"
CALIBRATION_SCHEMA: Final = "repro-gate.calibration/1"
MAX_DISTANCE_CLASSES: Final = 8195
# the counts of all reruns together stay below 2**63
Count = Annotated[int, Field(ge=0, le=2**48)]


class Provenance(Document):
    """What was measured, where and when: a figure without it means nothing."""

    commit: str
    changed_files: tuple[str, ...] = ()
    created_at: Timestamp
    settings_digest: str = Field(pattern=SHA256_PATTERN)
    training_digest: str = Field(pattern=SHA256_PATTERN)
    isolation: str
    environment: Environment


class ArmFigures(Document):
    """One arm: its knobs, and medians over its runs.

    `distinct_results` counts results that are not equal bit for bit. Memory is 0 and cold start
    None where unknown.
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
    """One arm over another: ratio of median steps, and its 95 % interval.

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
    """What became of a knob in the search for the minimal sufficient set."""

    NEEDED = "needed"
    KEPT = "kept"
    DROPPED = "dropped"
    OFF = "off"
    NOT_APPLICABLE = "not applicable"


class KnobPrice(Document):
    """What one knob costs, its fate, and the sentence that says why."""

    knob: str
    price: Price | None
    state: KnobState
    reason: str


class MinimalSet(Document):
    """The minimal sufficient set: knobs with which this workload was still equal bit for bit.

    `equal_runs` counts the runs of this very set that agreed, the last one made to verify it.
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
    """How far a metric moves between reruns of one and the same default training.

    `largest_gap` is the widest range over the runs at any step, at `gap_step`. `tolerance` is the
    smallest difference that means anything: see `gate.comparison.calibration`.
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
    """Share of the weights, and the distance in units in the last place that they stay within."""

    share: float
    distance: int


class WeightDistance(Document):
    """The final weights of one rerun against the first, as the reading process hands them on.

    `differing` of the `elements` have other bits. `relative_l2` is None where float64 cannot hold
    it. `distances` counts elements by their distance in units in the last place, in the classes of
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
    """The final weights of every rerun against the first.

    A norm is None where float64 cannot hold it.
    """

    elements: int
    elements_that_differ: int
    not_finite: int
    not_compared: tuple[str, ...] = ()
    relative_l2: tuple[float | None, ...]
    largest_relative_l2: float | None
    ulp: tuple[UlpQuantile, ...]


class ReductionSpread(Document):
    """The workload's own gradients summed in float32 in many orders.

    `worst` and `median` are ranges of the sums over the sum of magnitudes, over all tensors;
    `worst_of_sum` is the worst range over the sum itself, None when that is zero.
    """

    tensors: int
    elements: int
    orders: int
    worst_tensor: str
    worst: float
    median: float
    worst_of_sum: float | None
    most_distinct_sums: int


class NoiseDocument(Document):
    """The file `noise.json`.

    `undetected_share` bounds the share of runs that may differ although none of these did (95 %);
    None when some did.
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
    snippet: str
    notes: tuple[str, ...] = ()


class CalibratedTolerance(Document):
    """A tolerance derived for one metric and range of steps, and what it would have caught.

    `points` counts the steps in the range, `widest_step` is where the runs scatter most.
    """

    rule: Tolerance
    points: int
    widest_step: int
    use: ToleranceUse


class CalibrationDocument(Document):
    """The file `calibration.json`.

    `measured` says in words what the `runs` results are; they came from `environments` different
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
