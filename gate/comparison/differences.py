"""Differences, as values: what was compared, and what was not the same."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from gate.settings.levels import Derivation
from gate.text.document import Document, Timestamp

# Parts of the environment that come with what is installed, and not with the machine.
SOFTWARE_PARTS = frozenset(
    ("packages", "python", "torch", "numpy", "cuda", "cudnn", "cublas", "nccl")
)


DIGEST = re.compile(r"[0-9a-f]{64}")
OF_RANK: Final = " (rank "


def metric_of_rank(name: str, rank: int) -> str:
    """What a metric of one rank is called among those of all: `loss (rank 1)`; rank 0's stays."""
    return f"{name}{OF_RANK}{rank})" if rank else name


def without_rank(name: str) -> str:
    """The name that a metric has in its own rank."""
    return name.partition(OF_RANK)[0]


class MetricDelta(Document):
    """One metric at one step, expected and observed.

    `absolute` and `relative` are None where float64 has no finite number for them. `better` says
    whether it moved in the direction that the tolerance calls better; None where it names none.
    """

    metric: str
    step: int
    expected: str
    observed: str
    absolute: float | None
    relative: float | None
    ulp: int | None
    within: bool
    better: bool | None = None


class SeriesFaultKind(StrEnum):
    """Why a metric cannot be compared at every point."""

    MISSING = "missing"
    EXTRA = "extra"
    DTYPE = "dtype"
    STEPS = "steps"


class SeriesFault(Document):
    """A metric that only one side has, has in another type, or has at other steps.

    `first_step` is the first of its own steps that has no partner; None for another type.
    """

    metric: str
    kind: SeriesFaultKind
    first_step: int | None
    reason: str


class StepFaultKind(StrEnum):
    """What is not the same about the optimizer steps."""

    COUNT = "count"
    ALGORITHM = "algorithm"
    NOTHING_COMMON = "nothing-common"
    PARAMETERS = "parameters"


class StepFault(Document):
    """Something about the optimizer steps that is not the same; `message` is for a reader."""

    kind: StepFaultKind
    message: str


class TensorChange(StrEnum):
    """How a tensor differs: `retyped` is another type or shape, `changed` other values."""

    CHANGED = "changed"
    RETYPED = "retyped"
    MISSING = "missing"
    EXTRA = "extra"


ON_ONE_SIDE: Final = frozenset((TensorChange.MISSING, TensorChange.EXTRA))


class TensorDelta(Document):
    """One tensor that is not the same.

    `weight` says that it is a weight or a buffer of the model. `distance` is how far it moved,
    estimated: the norm of the difference over the larger norm; None where that cannot be known.
    `limit` is what the settings allow, None where they set none.
    """

    name: str
    kind: TensorChange
    expected: str
    observed: str
    weight: bool = False
    distance: float | None = None
    limit: float | None = None

    @property
    def beyond(self) -> bool:
        """Whether it is outside its limit; a distance that is not known is."""
        if self.limit is None:
            return False
        # other bits are a difference, however small
        return self.limit == 0 or self.distance is None or self.distance > self.limit


class OptimizerSettingChange(Document):
    """A setting of an optimizer, such as `lr`, that differs, or the class that it is of.

    `step` is the first at which it is known to differ, None where only the ends do; `equal_until`
    is the last before it at which it was equal. `before` and `after` are short decimal numbers,
    empty where it is none or is not known: those at that step, or where torch's scheduler moves a
    learning rate those that the scheduler was given. `revert_to` is the number to set again, empty
    where none is known. `scheduled`: it moves from step to step, and what the script sets is not
    known; `factor` is then what it is multiplied by at every step, empty where nothing fits.
    `configured` is the value of the training's configuration that changed from the same number to
    the same number, and where it is; empty where none or several did. `alone`: the training has no
    other optimizer, so a reader needs no number of it.
    """

    optimizer: int
    name: str
    before: str
    after: str
    revert_to: str = ""
    step: int | None = None
    equal_until: int | None = None
    scheduled: bool = False
    factor: str = ""
    configured: str = Field(default="", max_length=500)
    alone: bool = False

    @property
    def of_optimizer(self) -> str:
        """` of optimizer 1`, to be put behind a name; empty where there is no other one."""
        return "" if self.alone else f" of optimizer {self.optimizer}"


class OtherSetting(Document):
    """A setting of the training that an entry was recorded with another value of, as JSON.

    `before` is the entry's, empty where it has none, and `after` is the one here.
    """

    key: str
    before: str = ""
    after: str = ""


class WorkKind(StrEnum):
    """What a step works on, of what the settings of a run set."""

    SAMPLES = "samples"
    ROWS = "rows"
    PASSES = "passes"
    TURNS = "turns"


class WorkChange(Document):
    """Another number of samples or backward passes in a step: the first one, or in `every` step.

    Rows are the first dimension of the model's input, where no DataLoader counts samples. Of turns,
    `before` and `after` count the steps that optimizer 0 had made when `optimizer` made this one.
    """

    kind: WorkKind
    optimizer: int = 0
    step: int
    before: int
    after: int
    every: bool


class EnvironmentChange(Document):
    """One part of the environment that moved; `details` names what of it, where that is known.

    Of packages these are those that count, of `installed` ones here; `pins` are the former versions
    as pip takes them. With `imports_known` they
    count because the training imported them, then or now.
    """

    part: str
    expected: str
    observed: str
    comparable: bool
    details: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    installed: int = 0
    imports_known: bool = False

    @property
    def described(self) -> tuple[str, ...]:
        """What moved, each by name: two digests help nobody."""
        if self.details:
            return self.details
        if DIGEST.fullmatch(self.observed):
            return (self.part,)
        return (f"{self.part} {self.expected} → {self.observed}",)

    @property
    def share(self) -> str:
        """Of packages, how many moved: `2 of 54 packages; both imported`; else empty."""
        if not self.installed:
            return ""
        moved = len(self.details)
        who = {1: "", 2: "both "}.get(moved, "all ")
        known = f"; {who}imported" if self.imports_known else ""
        return f"{moved:,} of {self.installed:,} packages{known}"


class FingerprintDifference(Document):
    """A fingerprint of digests that differs: from which step on, and what was seen of it before.

    `equal_until` is the last step at which it was observed and still equal, `first_step` the first
    at which it was observed and differs; with thinned observation others may be in between.
    """

    fingerprint: str
    first_step: int
    equal_until: int | None


class LeastChange(Document):
    """The smallest change that a tolerance would have caught, and where.

    `share` is that part of the metric's value there, `absolute` the same in the metric's unit: any
    change above it is outside.
    """

    metric: str
    step: int
    share: float
    absolute: float


class ToleranceUse(Document):
    """What a tolerance of the settings does for the metrics of a run.

    `limits` are those that it sets, for a reader; `one_sided` says that a better metric passes.
    `metrics` are those of which it decides a step, `shadowed` says that earlier ones decide all of
    its steps, `named` that a metric has its name. `least` is taken over all points that it judges;
    None where it judges none, or every value is zero. `misfit` says why its limit is not what it
    was derived to be, or is empty.
    """

    pattern: str
    steps: str
    limits: tuple[str, ...]
    one_sided: bool
    derived: Derivation | None
    metrics: tuple[str, ...]
    shadowed: bool
    named: bool
    least: LeastChange | None
    misfit: str


# the side of a comparison that is an entry of the committed baseline, not a run
BASELINE_SIDE: Final = "baseline"


class EventKind(StrEnum):
    """What differs first, in the order in which one causes the next within a step."""

    ENVIRONMENT = "environment"
    STEPS = "steps"
    SAMPLES = "samples"
    ROWS = "rows"
    PASSES = "passes"
    TURNS = "turns"
    STRUCTURE = "structure"
    INITIAL = "initial"
    RANDOM = "random"
    BATCH = "batch"
    INPUT = "input"
    WEIGHTS = "weights"
    LOSS = "loss"
    BACKWARD = "backward"
    GRADIENTS = "gradients"
    PARAMETERS = "parameters"
    OPTIMIZER = "optimizer"
    METRIC = "metric"
    METRIC_MISSING = "metric-missing"
    STATE = "state"


class Event(Document):
    """Where one thing first differs.

    `step` is the optimizer step; None for the end state, and for a metric that counts something
    else, whose own number is `own_step`. `equal_until` is the last optimizer step at which it was
    seen and still equal.
    """

    kind: EventKind
    name: str
    step: int | None
    own_step: int | None = None
    equal_until: int | None = None

    @property
    def where(self) -> str:
        """When, for a reader: the number that stands beside it in its own source."""
        if self.own_step is not None and self.own_step != self.step:
            return f"at its step {self.own_step}"
        return "at the end" if self.step is None else f"at step {self.step}"


class RankDifference(Document):
    """One rank of several that differs, and where it first does."""

    rank: int
    first: Event


class Comparison(Document):
    """All differences between two results.

    `events` says where each thing first differs, earliest first, causes before what they cause; it
    decides nothing: a random state may move without any number following. `fingerprints` holds the
    same for the fingerprints, `compared_fingerprints` names those that both sides observed.

    `packages_aside` names installed packages that moved and count for nothing: no training imported
    them, or the settings ignore them.

    `compared_points` and `compared_tensors` count what was looked at: nothing compared is never
    equal. `ranks_apart` are the ranks that differ, earliest first, and `first_ranks` those of them
    that do so first, empty where all ranks do or only one trained.

    `unrecorded_from` is the step behind the last one at which both sides have the fingerprints
    that come before the first divergence, so that it may begin there; None where none is missing.
    """

    expected: str
    observed: str
    metrics: tuple[MetricDelta, ...]
    series: tuple[SeriesFault, ...]
    tensors: tuple[TensorDelta, ...]
    step_faults: tuple[StepFault, ...]
    environment: tuple[EnvironmentChange, ...]
    compared_points: int
    compared_steps: int
    compared_tensors: int
    steps_expected: int
    steps_observed: int
    events: tuple[Event, ...] = ()
    unrecorded_from: int | None = None
    fingerprints: tuple[FingerprintDifference, ...] = ()
    compared_fingerprints: tuple[str, ...] = ()
    optimizer_settings: tuple[OptimizerSettingChange, ...] = ()
    work: tuple[WorkChange, ...] = ()
    packages_aside: tuple[str, ...] = ()
    ranks_apart: Annotated[tuple[RankDifference, ...], Field(max_length=1000)] = ()
    first_ranks: tuple[int, ...] = ()

    @property
    def tensors_in_both(self) -> int:
        """How many tensors that both sides have differ."""
        return len(self.tensors) - self.tensors_on_one_side

    @property
    def tensors_on_one_side(self) -> int:
        """How many tensors only one side has."""
        return sum(tensor.kind in ON_ONE_SIDE for tensor in self.tensors)

    @property
    def something_compared(self) -> bool:
        """Whether there was anything to compare at all."""
        return self.compared_points > 0 and self.compared_tensors > 0

    @property
    def first(self) -> Event | None:
        """The first divergence, or None where nothing differs."""
        return next(iter(self.events), None)

    @property
    def first_step(self) -> int | None:
        """The optimizer step of the first divergence, where it has one."""
        return self.first.step if self.first is not None else None

    @property
    def differs(self) -> bool:
        """Whether any number, step or tensor is not the same, missing ones included."""
        return bool(self.metrics or self.series or self.tensors or self.step_faults)

    @property
    def numerically_equal(self) -> bool:
        """Whether every number, step digest and tensor is the same, bit for bit."""
        # both: an empty comparison has no difference either
        return self.something_compared and not self.differs

    @property
    def retyped(self) -> tuple[TensorDelta, ...]:
        """Tensors of another type or shape: outside, whatever the tolerance."""
        return tuple(delta for delta in self.tensors if delta.kind is TensorChange.RETYPED)

    @property
    def comparable(self) -> bool:
        """Whether the same metrics and tensors exist at the same steps on both sides."""
        # another type or shape is comparable and differs;
        # what one side lacks cannot be compared at all
        one_sided = {TensorChange.MISSING, TensorChange.EXTRA}
        return (
            self.something_compared
            and not self.series
            and self.steps_expected == self.steps_observed
            and not any(delta.kind in one_sided for delta in self.tensors)
        )

    @property
    def metrics_within(self) -> bool:
        """Whether every metric is inside its tolerance; whether that is enough is decided later."""
        return self.comparable and all(delta.within for delta in self.metrics)

    @property
    def farthest_tensor(self) -> TensorDelta | None:
        """The weight or buffer that moved farthest; one whose distance is not known goes last."""
        weights = [
            delta for delta in self.tensors if delta.weight and delta.kind is TensorChange.CHANGED
        ]
        return max(weights, key=lambda delta: delta.distance or 0.0, default=None)

    @property
    def first_tensor_beyond(self) -> TensorDelta | None:
        """The tensor that is farthest outside its limit."""
        beyond = [delta for delta in self.tensors if delta.beyond]
        # what has no distance cannot be said to be near
        return max(beyond, key=lambda delta: delta.distance or 0.0, default=None)

    @property
    def first_outside(self) -> MetricDelta | None:
        """The number outside its tolerance that comes first in the order of events."""
        outside = [delta for delta in self.metrics if not delta.within]
        # the order of events and not of steps: metrics may count other things than steps
        order = {event.name: place for place, event in enumerate(self.events)}
        last = len(order)
        return min(
            outside, key=lambda delta: (order.get(delta.metric, last), delta.step), default=None
        )

    @property
    def moved(self) -> tuple[str, ...]:
        """What of the environment moved, each once and by name."""
        return tuple(
            dict.fromkeys(words for change in self.environment for words in change.described)
        )

    @property
    def same_environment(self) -> bool:
        """Whether no part of the environment moved."""
        return not self.environment

    @property
    def software_moved(self) -> bool:
        """Whether a part moved that a pull request can bring, and that its base then runs with."""
        return any(change.part in SOFTWARE_PARTS for change in self.environment)

    @property
    def comparable_environment(self) -> bool:
        """Whether only parts moved that the settings allow to move."""
        return all(change.comparable for change in self.environment)


class CostState(StrEnum):
    """How much a cost figure means.

    `implausible` is a figure outside what determinism can be expected to cost: most often another
    cause changed the time of a step.
    """

    MEASURED = "measured"
    INCONCLUSIVE = "inconclusive"
    NOT_MEASURABLE = "not measurable"
    IMPLAUSIBLE = "implausible"

    @property
    def exceeds_noise(self) -> bool:
        """Whether this machine's noise cannot have made the figure."""
        return self in {CostState.MEASURED, CostState.IMPLAUSIBLE}


class DeterminismCost(Document):
    """What strict mode costs on this workload, strict over default.

    `time_ratio` is the geometric mean, over each strict run and the default run beside it, of the
    ratios of their median steady steps; `low` and `high` bound it (95 % bootstrap). Each
    `..._step_seconds` is the geometric mean of the medians of one side, so that their ratio is
    `time_ratio`. `control_low` and `control_high` bound one run over another of its own kind, the
    noise of this machine. All are None when not measurable; `reason` then says why.
    """

    state: CostState
    reason: str
    strict_step_seconds: float | None = None
    default_step_seconds: float | None = None
    time_ratio: float | None = None
    low: float | None = None
    high: float | None = None
    control_low: float | None = None
    control_high: float | None = None
    memory_ratio: float | None = None
    steps_used: int = 0


class KnobCost(Document):
    """Step time in strict mode over strict mode without this knob, and its 95 % interval."""

    knob: str
    ratio: float
    low: float
    high: float


class KnobCosts(Document):
    """The knobs whose cost exceeds this machine's noise; there may be none."""

    measured_at: Timestamp
    knobs: tuple[KnobCost, ...]


class NotFinite(Document):
    """A number that is NaN or infinite: a metric at a step, or elements of a saved tensor.

    `run` is the label of the run; `step` is None for a tensor, whose `value` says how many.
    `lasting`: so is every later number of the metric. `infinite`: none of them is NaN. `others` are
    the names of more such tensors.
    """

    run: str
    name: str
    step: int | None
    value: str
    lasting: bool = False
    infinite: bool = False
    others: tuple[str, ...] = ()


class SelfTestProbe(Document):
    """A planted fault and whether the comparators caught it."""

    name: str
    caught: bool


class ThresholdResult(Document):
    """A threshold of the policy and the metric's last value; `value` is empty where it has none."""

    metric: str
    least: float | None
    most: float | None
    step: int | None
    value: str
    met: bool
