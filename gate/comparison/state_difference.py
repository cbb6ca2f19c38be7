"""What two saved states differ in, leaf by leaf: plain data, quick to import.

A leaf such as `state/optimizer/0/state/3/exp_avg` has a number where a person looks for a name. The
harness tells which leaf the parameter is; nothing is decided by that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

# the place of a parameter's state: everything before what is kept there, `exp_avg` for example
_PLACE = re.compile(r"(.*?optimizer/[0-9]{1,6}/state/[0-9]{1,9})/")
_MODEL = "/model/"


def short_names(leaves: Mapping[str, str]) -> dict[str, str]:
    """For each place the parameter as its model calls it; of several models, with their number.

    `leaves` has, for the place of a parameter's state, the leaf that is the parameter.
    """
    numbered = {place: leaf.partition(_MODEL)[2] or leaf for place, leaf in leaves.items()}
    if len({name.partition("/")[0] for name in numbered.values()}) > 1:
        return numbered
    return {place: name.partition("/")[2] or name for place, name in numbered.items()}


def parameter_of(leaf: str, names: Mapping[str, str]) -> str:
    """The name of the parameter that this leaf of an optimizer belongs to, or nothing."""
    place = _PLACE.match(leaf)
    return names.get(place.group(1), "") if place is not None else ""


def with_parameter(leaf: str, names: Mapping[str, str]) -> str:
    """`state/optimizer/0/state/3/exp_avg (head.weight)`, or the leaf alone."""
    parameter = parameter_of(leaf, names)
    return f"{leaf} ({parameter})" if parameter else leaf


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
