"""One word about a call where it decides whether the operator is nondeterministic on some device.

The word follows the operator's name in parentheses: `aten::cumsum(floating)`. An operator that
writes in place is told by the name of its family, without the trailing underscore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch

BAG_MODES: Final = ("sum", "mean", "max")
Argument = Callable[[str], Any]


def names_of(
    func: Any, name: str, args: tuple[Any, ...], named: Mapping[str, Any]
) -> Iterator[str]:
    """The names under which a call may be looked for, its own name first."""
    yield name
    family = name.rstrip("_")
    if family != name:
        yield family
    detail = _DETAILS.get(family)
    if detail is not None:
        yield f"{family}({detail(lambda wanted: _argument(func, args, named, wanted))})"


def _argument(func: Any, args: tuple[Any, ...], named: Mapping[str, Any], wanted: str) -> Any:
    """The value of an argument by its name in the schema; None where the overload has none."""
    for position, argument in enumerate(func._schema.arguments):  # noqa: SLF001 - no public name
        if argument.name == wanted:
            default = argument.default_value
            return args[position] if position < len(args) else named.get(wanted, default)
    return None


def _cumsum(argument: Argument) -> str:
    dtype = argument("dtype") or argument("self").dtype
    return "floating" if dtype.is_floating_point or dtype.is_complex else "integer"


def _accumulate(argument: Argument) -> str:
    return "accumulate" if argument("accumulate") else "replace"


def _median(argument: Argument) -> str:
    return "all" if argument("dim") is None else "indices"


def _bincount(argument: Argument) -> str:
    return "plain" if argument("weights") is None else "weights"


def _scatter(argument: Argument) -> str:
    return "tensor" if isinstance(argument("src"), torch.Tensor) else "value"


def _scatter_reduce(argument: Argument) -> str:
    return str(argument("reduce"))


def _bag(argument: Argument) -> str:
    return BAG_MODES[argument("mode")]


def _bmm(argument: Argument) -> str:
    return "dense" if argument("self").layout is torch.strided else "sparse"


_DETAILS: Final[dict[str, Callable[[Argument], str]]] = {
    "aten::bincount": _bincount,
    "aten::bmm": _bmm,
    "aten::cumsum": _cumsum,
    "aten::_embedding_bag_backward": _bag,
    "aten::index_put": _accumulate,
    "aten::median": _median,
    "aten::nanmedian": _median,
    "aten::put": _accumulate,
    "aten::scatter": _scatter,
    "aten::scatter_reduce": _scatter_reduce,
}
