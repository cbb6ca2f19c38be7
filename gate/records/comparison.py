"""Differences, as values: what was compared, and what was not the same."""

from __future__ import annotations

from enum import StrEnum

from gate.records.document import Document


class MetricDelta(Document):
    """One metric at one step, expected and observed; `kind` says how they differ."""

    metric: str
    step: int
    expected: str
    observed: str
    absolute: float | None
    relative: float | None
    ulp: int | None
    within: bool


class SeriesFault(Document):
    """A metric that cannot be compared point by point: missing, extra, or other steps."""

    metric: str
    reason: str


class TensorChange(StrEnum):
    """How a tensor differs."""

    CHANGED = "changed"
    MISSING = "missing"
    EXTRA = "extra"


class TensorDelta(Document):
    """One tensor that is not the same."""

    name: str
    kind: TensorChange
    expected: str
    observed: str


class EnvironmentChange(Document):
    """One part of the environment that moved."""

    part: str
    expected: str
    observed: str
    comparable: bool


class StreamDifference(Document):
    """A stream of digests that differs: from which step on, and what was seen of it before.

    `equal_until` is the last step at which it was observed and still equal, `first_step` the first
    at which it was observed and differs; with thinned observation others may lie in between.
    """

    stream: str
    first_step: int
    equal_until: int | None


class Comparison(Document):
    """All differences between two results.

    `streams` tells where they first differ, for a diagnosis; it decides nothing: a random state
    may move without any number following. `compared_streams` names those that both sides observed.

    `compared_points` and `compared_tensors` count what was looked at: nothing compared is never
    equal. `first_step` is the first step at which anything differs.
    """

    expected: str
    observed: str
    metrics: tuple[MetricDelta, ...]
    series: tuple[SeriesFault, ...]
    tensors: tuple[TensorDelta, ...]
    step_faults: tuple[str, ...]
    environment: tuple[EnvironmentChange, ...]
    compared_points: int
    compared_steps: int
    compared_tensors: int
    first_step: int | None
    streams: tuple[StreamDifference, ...] = ()
    compared_streams: tuple[str, ...] = ()

    @property
    def something_compared(self) -> bool:
        """Whether there was anything to compare at all."""
        return self.compared_points > 0 and self.compared_tensors > 0

    @property
    def differs(self) -> bool:
        """Whether any number, step or tensor is not the same, missing ones included."""
        return bool(self.metrics or self.series or self.tensors or self.step_faults)

    @property
    def numerically_equal(self) -> bool:
        """Whether every number, step digest and tensor is the same, bit for bit."""
        return self.something_compared and not self.differs

    @property
    def comparable(self) -> bool:
        """Whether the same metrics and tensors exist at the same steps on both sides."""
        shapes = all(delta.kind is TensorChange.CHANGED for delta in self.tensors)
        return self.something_compared and not self.series and shapes

    @property
    def within_tolerance(self) -> bool:
        """Whether every metric is inside its tolerance; tensors are the policy's business."""
        return self.comparable and all(delta.within for delta in self.metrics)

    @property
    def same_environment(self) -> bool:
        """Whether no part of the environment moved."""
        return not self.environment

    @property
    def comparable_environment(self) -> bool:
        """Whether only parts moved that the settings allow to move."""
        return all(change.comparable for change in self.environment)


class CostState(StrEnum):
    """How much a cost figure means."""

    MEASURED = "measured"
    INCONCLUSIVE = "inconclusive"
    NOT_MEASURABLE = "not measurable"


class DeterminismCost(Document):
    """What strict mode costs on this workload, strict over default.

    `time_ratio` is a ratio of median steady-state step times; `low` and `high` bound it (95 %
    bootstrap). `control_low` and `control_high` bound default over default, the noise of this
    machine. All are None when not measurable; `reason` then says why.
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
