"""The records of a comparison: what was compared, and what differs."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from gate.settings.levels import Derivation
from gate.text.document import Document, Timestamp

# Parts of the environment that belong to installed software rather than to the machine.
SOFTWARE_PARTS = frozenset(
    ("packages", "python", "torch", "numpy", "cuda", "cudnn", "cublas", "nccl")
)


DIGEST = re.compile(r"[0-9a-f]{64}")
OF_RANK: Final = " (rank "


def metric_of_rank(name: str, rank: int) -> str:
    """Return a metric's name among all ranks', such as `loss (rank 1)`; rank 0's is plain."""
    return f"{name}{OF_RANK}{rank})" if rank else name


def without_rank(name: str) -> str:
    """Return the name that a metric has in its own rank."""
    return name.partition(OF_RANK)[0]


class MetricDelta(Document):
    """The difference of one metric at one step.

    `absolute` and `relative` are None where float64 has no finite number for them. `better` says
    whether the metric moved in the direction that its tolerance prefers, None without a direction.
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
    """A metric that only one side has, or whose type or steps differ between the sides.

    `first_step` is the first of its own steps without a partner, None for a different type.
    """

    metric: str
    kind: SeriesFaultKind
    first_step: int | None
    reason: str


class StepFaultKind(StrEnum):
    """What differs between the optimizer steps of two results."""

    COUNT = "count"
    ALGORITHM = "algorithm"
    NOTHING_COMMON = "nothing-common"
    PARAMETERS = "parameters"


class StepFault(Document):
    """A difference between the optimizer steps of two results; `message` is for a reader."""

    kind: StepFaultKind
    message: str


class TensorChange(StrEnum):
    """How a tensor differs: `retyped` means type or shape, `changed` means values."""

    CHANGED = "changed"
    RETYPED = "retyped"
    MISSING = "missing"
    EXTRA = "extra"


ON_ONE_SIDE: Final = frozenset((TensorChange.MISSING, TensorChange.EXTRA))


class TensorDelta(Document):
    """A tensor that differs.

    `weight`: it is a weight or buffer of the model. `distance` estimates how far it moved: the norm
    of the difference divided by the larger norm, None where unknown. `limit` is what the settings
    allow, None where they set no limit.
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
        """Whether the tensor is outside its limit; an unknown distance is outside."""
        if self.limit is None:
            return False
        # Different bits are a difference, however small.
        return self.limit == 0 or self.distance is None or self.distance > self.limit


class OptimizerSettingChange(Document):
    """A changed setting of an optimizer, such as `lr`, or its changed class.

    `step` is the first step at which it is known to differ, None where only the end states do.
    `equal_until` is the last earlier step at which it was equal. `before` and `after` are short
    decimal numbers at that step, empty where not numeric or unknown. If torch's scheduler moves a
    learning rate, they are the numbers that the scheduler was given. `revert_to` is the number to
    set again, empty where unknown.

    `scheduled`: the setting moves from step to step, and what the script set is not known. `factor`
    is then the constant ratio of the two sides, empty where none fits. `configured` names the value
    of the training's configuration that changed between the same two numbers, empty where none or
    several did. `alone`: the training has no other optimizer, so a reader needs no number.
    `groups` of the optimizer's `all_groups` parameter groups changed; both are 0 where all did.
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
    groups: int = 0
    all_groups: int = 0

    @property
    def of_optimizer(self) -> str:
        """A suffix such as ` of optimizer 1`; empty where there is only one optimizer."""
        return "" if self.alone else f" of optimizer {self.optimizer}"

    @property
    def in_groups(self) -> str:
        """A suffix such as ` in 1 of 2 parameter groups`; empty where all of them changed."""
        if not self.groups:
            return ""
        return f" in {self.groups} of {self.all_groups} parameter groups"


class OtherSetting(Document):
    """A training setting whose value in an entry differs from the value here, as JSON.

    `before` is the entry's value, empty where it has none. `after` is the value here.
    """

    key: str
    before: str = ""
    after: str = ""


class WorkKind(StrEnum):
    """The amounts of work in a step that settings of a run decide."""

    SAMPLES = "samples"
    ROWS = "rows"
    PASSES = "passes"
    TURNS = "turns"


class WorkChange(Document):
    """A changed amount of work; `every` says that all steps changed as `step`, the first one, did.

    `WorkKind.ROWS` is the first dimension of the model's input, for trainings without a DataLoader
    that counts samples. For `WorkKind.TURNS`, `before` and `after` count the steps that optimizer 0
    had made when `optimizer` made this one.
    """

    kind: WorkKind
    optimizer: int = 0
    step: int
    before: int
    after: int
    every: bool


class EnvironmentChange(Document):
    """A part of the environment that moved; `details` names what moved in it, where that is known.

    For packages, `details` are those that count, and `installed` is the number installed here.
    `pins` are the former versions in pip's notation. `imports_known`: these packages count because
    the training imported them on one of the sides.
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
        """What moved, by name where names are known: two digests help nobody."""
        if self.details:
            return self.details
        if DIGEST.fullmatch(self.observed):
            return (self.part,)
        return (f"{self.part} {self.expected} → {self.observed}",)

    @property
    def share(self) -> str:
        """How many packages moved, such as `2 of 54 packages; both imported`; else empty."""
        if not self.installed:
            return ""
        moved = len(self.details)
        who = {1: "", 2: "both "}.get(moved, "all ")
        known = f"; {who}imported" if self.imports_known else ""
        return f"{moved:,} of {self.installed:,} packages{known}"


class FingerprintDifference(Document):
    """A fingerprint that differs, and from which step on.

    `equal_until` is the last step at which it was observed and equal. `first_step` is the first at
    which it was observed and different. With a sampling interval, steps in between were not
    observed.
    """

    fingerprint: str
    first_step: int
    equal_until: int | None


class LeastChange(Document):
    """The smallest change that a tolerance would have caught, and where.

    `share` is relative to the metric's value there, `absolute` in the metric's unit. Any larger
    change is outside the tolerance.
    """

    metric: str
    step: int
    share: float
    absolute: float


class ToleranceUse(Document):
    """What a tolerance of the settings does for the metrics of a run.

    `limits` are its limits in words. `one_sided`: a better metric passes. `metrics` are the metrics
    for which it decides a step. `shadowed`: earlier tolerances decide all of its steps. `named`:
    its pattern matches a metric. `least` covers all points that it judges, None where it judges
    none or every value is zero. `misfit` says why the limit differs from what it was derived to be,
    or is empty.
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


# The name of the side that is an entry of the committed baseline instead of a run.
BASELINE_SIDE: Final = "baseline"


class EventKind(StrEnum):
    """What differs first, in causal order: within a step an earlier kind can cause a later one."""

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

    `step` is the optimizer step. It is None for the end state, and for a metric that counts
    something else; `own_step` is then the metric's own number. `equal_until` is the last optimizer
    step at which the thing was observed and equal.
    """

    kind: EventKind
    name: str
    step: int | None
    own_step: int | None = None
    equal_until: int | None = None

    @property
    def where(self) -> str:
        """A phrase for when it differs, with the number that its original source shows."""
        if self.own_step is not None and self.own_step != self.step:
            return f"at its step {self.own_step}"
        return "at the end" if self.step is None else f"at step {self.step}"


class RankDifference(Document):
    """A rank that differs, and its first difference."""

    rank: int
    first: Event


class Comparison(Document):
    """All differences between two results.

    `events` says where each thing first differs: earliest first, causes before effects. It only
    explains and decides nothing, because a random state may move without any number following.
    `fingerprints` are the differing fingerprints. `compared_fingerprints` names those that both
    sides observed.

    `compared_points` and `compared_tensors` count what was compared: if nothing was, the results
    are never equal (T4). `packages_aside` names installed packages that moved and are ignored,
    because no training imported them or the settings ignore them.

    `ranks_apart` are the ranks that differ, earliest first. `first_ranks` are those that differ
    first, empty if all ranks do or only one trained.

    `unrecorded_from` is the step after the last one at which both sides have all fingerprints that
    precede the first divergence. The divergence may have begun there. None where none is missing.

    `loss_unrecorded`: no sentence may say that the loss of the first divergence's step is equal,
    since not both sides have one. A script that computes its gradients by hand has none.
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
    loss_unrecorded: bool = False
    fingerprints: tuple[FingerprintDifference, ...] = ()
    compared_fingerprints: tuple[str, ...] = ()
    optimizer_settings: tuple[OptimizerSettingChange, ...] = ()
    work: tuple[WorkChange, ...] = ()
    packages_aside: tuple[str, ...] = ()
    ranks_apart: Annotated[tuple[RankDifference, ...], Field(max_length=1000)] = ()
    first_ranks: tuple[int, ...] = ()

    @property
    def tensors_in_both(self) -> int:
        """The number of differing tensors that both sides have."""
        return len(self.tensors) - self.tensors_on_one_side

    @property
    def tensors_on_one_side(self) -> int:
        """The number of tensors that only one side has."""
        return sum(tensor.kind in ON_ONE_SIDE for tensor in self.tensors)

    @property
    def something_compared(self) -> bool:
        """Whether both numbers and tensors were compared."""
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
        """Whether any number, step or tensor differs or is missing."""
        return bool(self.metrics or self.series or self.tensors or self.step_faults)

    @property
    def numerically_equal(self) -> bool:
        """Whether every number, step digest and tensor is equal, bit for bit."""
        # Both conditions matter: an empty comparison has no difference either (T4).
        return self.something_compared and not self.differs

    @property
    def retyped(self) -> tuple[TensorDelta, ...]:
        """Tensors of a different type or shape, which no tolerance covers."""
        return tuple(delta for delta in self.tensors if delta.kind is TensorChange.RETYPED)

    @property
    def comparable(self) -> bool:
        """Whether both sides have the same metrics and tensors at the same steps."""
        # A different type or shape is comparable and differs. What one side lacks cannot be
        # compared.
        one_sided = {TensorChange.MISSING, TensorChange.EXTRA}
        return (
            self.something_compared
            and not self.series
            and self.steps_expected == self.steps_observed
            and not any(delta.kind in one_sided for delta in self.tensors)
        )

    @property
    def metrics_within(self) -> bool:
        """Whether every metric is within its tolerance; the decision asks for more than that."""
        # Without `comparable`, a missing metric would count as within tolerance.
        return self.comparable and all(delta.within for delta in self.metrics)

    @property
    def farthest_tensor(self) -> TensorDelta | None:
        """The weight or buffer that moved farthest; unknown distances count as zero."""
        weights = [
            delta for delta in self.tensors if delta.weight and delta.kind is TensorChange.CHANGED
        ]
        return max(weights, key=lambda delta: delta.distance or 0.0, default=None)

    @property
    def first_tensor_beyond(self) -> TensorDelta | None:
        """The tensor that is farthest outside its limit."""
        beyond = [delta for delta in self.tensors if delta.beyond]
        # An unknown distance is outside too, but counts as zero here: a known distance goes first.
        return max(beyond, key=lambda delta: delta.distance or 0.0, default=None)

    @property
    def first_outside(self) -> MetricDelta | None:
        """The number outside its tolerance whose metric comes first in the order of events."""
        outside = [delta for delta in self.metrics if not delta.within]
        # The order of events rather than of steps: a metric may count something other than steps.
        order = {event.name: place for place, event in enumerate(self.events)}
        last = len(order)
        return min(
            outside, key=lambda delta: (order.get(delta.metric, last), delta.step), default=None
        )

    @property
    def moved(self) -> tuple[str, ...]:
        """What moved in the environment, each part once and by name."""
        return tuple(
            dict.fromkeys(words for change in self.environment for words in change.described)
        )

    @property
    def same_environment(self) -> bool:
        """Whether no part of the environment moved."""
        return not self.environment

    @property
    def software_moved(self) -> bool:
        """Whether software moved that a pull request may install; its base then gets it too."""
        return any(change.part in SOFTWARE_PARTS for change in self.environment)

    @property
    def comparable_environment(self) -> bool:
        """Whether all parts that moved are allowed to move by the settings."""
        return all(change.comparable for change in self.environment)


class CostState(StrEnum):
    """How reliable a cost figure is.

    `implausible` is a figure outside the range that determinism can cost. Most often something else
    changed the time of a step.
    """

    MEASURED = "measured"
    INCONCLUSIVE = "inconclusive"
    NOT_MEASURABLE = "not measurable"
    IMPLAUSIBLE = "implausible"

    @property
    def exceeds_noise(self) -> bool:
        """Whether this machine's noise cannot explain the figure."""
        return self in {CostState.MEASURED, CostState.IMPLAUSIBLE}


class DeterminismCost(Document):
    """The cost of strict mode on this workload, strict over default.

    `time_ratio` is the geometric mean over rounds. A round is a strict run and the default run
    beside it, and its ratio is that of their median steady steps. `low` and `high` are its 95 %
    bootstrap interval. Each `..._step_seconds` is the geometric mean of one side's medians, so that
    their ratio is `time_ratio`. `control_low` and `control_high` bound one run over another of its
    own kind, which is the noise of this machine. All are None when not measurable; `reason` then
    says why.
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
    """Step time in strict mode divided by strict mode without this knob, with a 95 % interval."""

    knob: str
    ratio: float
    low: float
    high: float


class KnobCosts(Document):
    """The knobs whose cost exceeds this machine's noise; there may be none."""

    measured_at: Timestamp
    knobs: tuple[KnobCost, ...]


class NotFinite(Document):
    """A NaN or infinity: a metric at a step, or elements of a saved tensor.

    `run` is the run's label. `step` is None for a tensor, and `value` then says how many elements.
    `lasting`: every later number of the metric is not finite either. `infinite`: none of them is
    NaN. `others` are the names of further such tensors.
    """

    run: str
    name: str
    step: int | None
    value: str
    lasting: bool = False
    infinite: bool = False
    others: tuple[str, ...] = ()


class SelfTestProbe(Document):
    """A planted fault, and whether the comparators caught it."""

    name: str
    caught: bool


class ThresholdResult(Document):
    """A threshold of the policy with the metric's last value, empty where the metric has none."""

    metric: str
    least: float | None
    most: float | None
    step: int | None
    value: str
    met: bool
