"""What an entry records about its acceptance: measured facts that judge nothing."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from gate.text.document import Document, Timestamp

# Bounds every text, because a proposal may come from elsewhere and claim anything.
TEXT_CHARACTERS: Final = 1000


def _where(metric: str, step: int | None) -> str:
    return metric if step is None else f"{metric} at step {step}"


class Movement(Document):
    """How far a result is from the entry that it replaces.

    `metric` is the one that is farthest off, empty where every metric is equal; `before` and
    `after` are its values at `step`. `relative` is |a - b| / |before|. `ulp` is the distance in
    units in the last place, None where there is none. `tolerances` is the difference in multiples
    of its tolerance, None without a tolerance. `outcome` is the gate's outcome for the new result
    against the old one, empty where no gate call judged it. `structure`: metrics, steps or tensors
    differ.
    """

    commit: str = Field(max_length=TEXT_CHARACTERS)
    outcome: str = Field(default="", max_length=TEXT_CHARACTERS)
    metric: str = Field(default="", max_length=TEXT_CHARACTERS)
    step: int | None = None
    before: str = Field(default="", max_length=TEXT_CHARACTERS)
    after: str = Field(default="", max_length=TEXT_CHARACTERS)
    relative: float | None = None
    ulp: int | None = None
    tolerances: float | None = None
    weights_equal: bool
    structure: bool = False

    @property
    def where(self) -> str:
        """For example `loss at step 3`."""
        return _where(self.metric, self.step)


class FarFromPeers(Document):
    """Where an entry is farthest from entries of the same training in other environments.

    `least` and `most` are the peers' lowest and highest value there. `room` is how far outside
    these two the entry may be. All are in the metric's unit. If the entry lacks what every peer
    has, `value` is empty and the numbers are None.
    """

    peers: int = Field(ge=1)
    metric: str = Field(max_length=TEXT_CHARACTERS)
    step: int | None = None
    value: str = Field(default="", max_length=TEXT_CHARACTERS)
    least: float | None = None
    most: float | None = None
    room: float | None = None

    @property
    def described(self) -> str:
        """For example `loss at step 3 is 9.1, and the 2 others have 2.1 to 2.2`."""
        others = f"the {self.peers} others have" if self.peers > 1 else "the other has"
        where = _where(self.metric, self.step)
        if not self.value or self.least is None or self.most is None:
            return f"it has no {where}, which {others}"
        between = f"{self.least:.6g}"
        if self.least != self.most:
            between = f"{between} to {self.most:.6g}"
        return f"{where} is {self.value}, and {others} {between}"


class ProvisionalEntry(Document):
    """An entry that may not judge yet, and whether this run repeats it, bit for bit.

    `brought`: the pull request includes the entry.
    """

    far: FarFromPeers
    repeated: bool
    brought: bool


class InQuarantine(Document):
    """The rule of the settings that covers what differs from the entry: `metrics`, or all."""

    metrics: tuple[str, ...]
    reason: str
    until: str


PositiveRatio = Annotated[float, Field(gt=0, lt=1e6, allow_inf_nan=False)]


class RecordedPrice(Document):
    """Step time in strict mode over default mode with its 95 % interval, and peak memory likewise.

    `memory_ratio` is None where no memory was measured.
    """

    measured_at: Timestamp
    time_ratio: PositiveRatio
    low: PositiveRatio
    high: PositiveRatio
    memory_ratio: PositiveRatio | None = None
