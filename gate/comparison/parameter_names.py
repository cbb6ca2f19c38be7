"""What a reader calls the state that an optimizer keeps for a parameter: by the parameter's name.

A leaf such as `state/optimizer/0/state/3/exp_avg` has a number where a person looks for a name. The
harness tells which leaf the parameter is; nothing is decided by that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

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
