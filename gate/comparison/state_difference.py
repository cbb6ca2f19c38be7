"""What two saved states differ in, leaf by leaf: plain data, quick to import."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

DIFFERENCE_SCHEMA: Final = "repro-gate.difference/1"


class LeafChange(StrEnum):
    """How a leaf differs; `RETYPED` and `RESHAPED` tensors have no numbers to subtract."""

    CHANGED = "changed"
    RETYPED = "different type"
    RESHAPED = "different shape"
    MISSING = "missing"
    EXTRA = "extra"


@dataclass(frozen=True, kw_only=True, slots=True)
class UlpShare:
    """The distance in units in the last place that this share of the elements does not exceed."""

    share: float
    distance: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberDifference:
    """The numbers of one tensor against another of the same type and shape.

    `differing` counts elements whose bits differ, `first_index` is where the first of them stands.
    Differences, norms and distances are over elements that are finite in both; a complex element
    counts by its two parts. `max_relative` is over the larger of the two magnitudes, `relative_l2`
    the norm of the difference over the larger of the two norms. None means that there is no such
    number: no finite element, or one beyond float64. `ulp` is empty for integers.
    """

    elements: int
    differing: int
    first_index: tuple[int, ...]
    max_absolute: int | float | None
    max_relative: float | None
    relative_l2: float | None
    ulp: tuple[UlpShare, ...]
    not_numbers: tuple[int, int]
    infinities: tuple[int, int]

    @property
    def finiteness_moved(self) -> bool:
        """Whether one side has more NaN or infinite elements than the other."""
        return len(set(self.not_numbers)) > 1 or len(set(self.infinities)) > 1


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafDifference:
    """A leaf that differs; `left` and `right` describe it on either side, empty where it is not.

    A tensor is described by type and shape, a value by its kind and a short, escaped form of it.
    `relative` orders differences: the size of the difference over the size of the leaf.
    `parameter` is the model's parameter whose state in an optimizer this is, where that is known.
    """

    path: str
    part: str
    change: LeafChange
    left: str
    right: str
    relative: float
    numbers: NumberDifference | None = None
    parameter: str = ""

    @property
    def shown(self) -> str:
        """The path, and the parameter behind it."""
        return f"{self.path} ({self.parameter})" if self.parameter else self.path


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedState:
    """One of the two states: its name for the reader, what it was recognised as, its notes."""

    shown: str
    format: str
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """Leaves of both states that an exclusion left out."""

    pattern: str
    reason: str
    leaves: tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class StateDifference:
    """Two states against each other; `differences` stand worst first.

    `equal_tensors` and `equal_values` count leaves that are equal bit for bit.
    """

    left: ComparedState
    right: ComparedState
    equal_tensors: int
    equal_values: int
    differences: tuple[LeafDifference, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def equal(self) -> bool:
        """Whether nothing differs; something was compared in any case."""
        return not self.differences
