"""What an entry of the baseline says of its own way into the file: measured, never judged anew."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from gate.records.document import Document

# whatever a proposal from elsewhere claims
TEXT_CHARACTERS: Final = 1000


class Movement(Document):
    """How far a result is from the entry that it replaces.

    `metric` is the one that is farthest off, empty where every metric is equal; `before` and
    `after` are its values there. `relative` is |a - b| / |before| and `ulp` the distance in units
    in the last place, None where there is none. `tolerances` is the difference as a multiple of its
    tolerance, None where the settings have none for it. `outcome` is what the gate said of the new
    result against the old one; empty where no gate call did. `structure` says that one side has
    other metrics, steps or tensors.
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


class FarFromPeers(Document):
    """Where an entry is farthest from those of the same training in other environments.

    `least` and `most` are what they have there, `room` is how far outside these two it may be, all
    in the metric's own unit. `value` is empty, and the numbers are None, where the entry lacks what
    every peer has.
    """

    peers: int = Field(ge=1)
    metric: str = Field(max_length=TEXT_CHARACTERS)
    step: int | None = None
    value: str = Field(default="", max_length=TEXT_CHARACTERS)
    least: float | None = None
    most: float | None = None
    room: float | None = None


class ProvisionalEntry(Document):
    """An entry that may not judge yet, and whether this run repeats it bit for bit.

    `brought` says that the pull request brings it.
    """

    far: FarFromPeers
    repeated: bool
    brought: bool


class InQuarantine(Document):
    """The rule of the settings that covers what differs from the entry: `metrics`, or all of it."""

    metrics: tuple[str, ...]
    reason: str
    until: str
