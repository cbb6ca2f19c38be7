"""The differences of two saved states, leaf by leaf: plain records that are quick to import.

A leaf such as `state/optimizer/0/state/3/exp_avg` has a number where a person expects a name. The
harness reports which leaf is the parameter. It is only shown, and decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

# Matches the place of a parameter's state: everything before the value's own name, such as
# `exp_avg`.
_PLACE = re.compile(r"(.*?optimizer/[0-9]{1,6}/state/[0-9]{1,9})/")
_MODEL = "/model/"


def short_names(leaves: Mapping[str, str]) -> dict[str, str]:
    """Return each place's parameter as its model names it; with a number if models are several.

    `leaves` maps the place of a parameter's state to the leaf that is the parameter.
    """
    numbered = {place: leaf.partition(_MODEL)[2] or leaf for place, leaf in leaves.items()}
    if len({name.partition("/")[0] for name in numbered.values()}) > 1:
        return numbered
    return {place: name.partition("/")[2] or name for place, name in numbered.items()}


def parameter_of(leaf: str, names: Mapping[str, str]) -> str:
    """Return the name of the parameter that this leaf of an optimizer belongs to, or ""."""
    place = _PLACE.match(leaf)
    return names.get(place.group(1), "") if place is not None else ""


def with_parameter(leaf: str, names: Mapping[str, str]) -> str:
    """Return `state/optimizer/0/state/3/exp_avg (head.weight)`, or only the leaf."""
    parameter = parameter_of(leaf, names)
    return f"{leaf} ({parameter})" if parameter else leaf


DIFFERENCE_SCHEMA: Final = "repro-gate.difference/1"


class LeafChange(StrEnum):
    """How a leaf differs; tensors of a different type or shape have no numbers to subtract."""

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
    """The numbers of one tensor against another one of the same type and shape.

    `differing` counts elements whose bits differ, and `first_index` is the position of the first.
    Differences, norms and distances cover elements that are finite on both sides. A complex element
    counts by its two parts. `max_relative` is relative to the larger magnitude. `relative_l2` is
    the norm of the difference divided by the larger norm. None means that the number does not
    exist: no element is finite, or it overflows float64. `ulp` is empty for integers.
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
    """A leaf that differs; `left` and `right` describe it, empty on a side that lacks it.

    A tensor is described by type and shape, a value by its kind and a short, escaped form.
    `relative` sorts differences: the size of the difference divided by the size of the leaf.
    `parameter` is the model's parameter whose optimizer state this is, where known.
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
        """The path, followed by the parameter where it is known."""
        return f"{self.path} ({self.parameter})" if self.parameter else self.path


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedState:
    """One of the two states: its name for the reader, its detected format, and notes."""

    shown: str
    format: str
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """Leaves that an exclusion left out, counted on both sides."""

    pattern: str
    reason: str
    leaves: tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class StateDifference:
    """The differences of two states, worst first.

    `equal_tensors` and `equal_values` count leaves that are equal, bit for bit.
    """

    left: ComparedState
    right: ComparedState
    equal_tensors: int
    equal_values: int
    differences: tuple[LeafDifference, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def equal(self) -> bool:
        """Whether nothing differs; `compare_states` ensures that something was compared."""
        return not self.differences
