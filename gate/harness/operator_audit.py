"""Sees every operator call of an operator audit; not used in judged runs, which it would slow.

What a compiled region consists of is not seen, and neither is a thread that the script starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from .call_details import names_of
from .dispatch_mode import DispatchMode
from .forward_lines import ForwardLines
from .user_code import CodeLine, running_line

# Namespaces that torch itself registers only when it needs them.
LATE_NAMESPACES: Final = frozenset(
    (
        *("prim", "c10d_functional", "fsdp", "dynamo", "higher_order", "streams", "device_mesh"),
        *("prepacked", "aoti", "quantized_decomposed", "dtensor", "_inductor_test", "inductor"),
    )
)
OnCall = Callable[[str, str, CodeLine], None]


class DispatchRecorder(DispatchMode):  # type: ignore[no-untyped-call] # torch's own lacks types
    """Hands on name, device and line of audited operators and of those that are not torch's.

    An operator of a backward pass is told with the line of the forward call behind it.
    """

    def __init__(
        self,
        audited: frozenset[str],
        on_call: OnCall,
        guarded: Callable[[Callable[[], None]], None],
    ) -> None:
        super().__init__()
        self._audited = audited
        self._torchs_own = namespaces() | LATE_NAMESPACES
        self._on_call = on_call
        self._guarded = guarded
        self._forward = ForwardLines()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Let the operator run, then look at what came out."""
        del types
        named = dict(kwargs or {})
        result = func(*args, **named)
        # whatever goes wrong in looking never reaches the training
        self._guarded(lambda: self._look(func, args, named, result))
        return result

    def _look(
        self, func: Any, args: tuple[Any, ...], named: Mapping[str, Any], result: Any
    ) -> None:
        place = self._place()
        name = operator_name(func)
        if name.partition("::")[0] not in self._torchs_own:
            self._on_call(name, device_of(args, result), place)
            return
        for wanted in names_of(func, name, args, named):
            if wanted in self._audited and _matters(wanted, args, named, result):
                self._on_call(wanted, device_of(args, result), place)

    def _place(self) -> CodeLine:
        """The line to blame; a forward call's is kept for the backward pass of it."""
        place = running_line()
        if not place.started_backward:
            self._forward.note(place)
            return place
        node: Any = torch._C._current_autograd_node()  # noqa: SLF001 - no public name
        file, line, _ = ("", 0, "") if node is None else self._forward.of(node)
        return CodeLine(file, line, backward=True) if file else place


def namespaces() -> frozenset[str]:
    """The namespaces of all operators that are registered now."""
    registered: Any = torch._C._dispatch_get_all_op_names()  # noqa: SLF001 - no public list exists
    return frozenset(name.partition("::")[0] for name in registered)


def operator_name(func: Any) -> str:
    """For example `aten::topk`, without its overload."""
    schema = getattr(func, "_schema", None)
    if schema is not None:
        return str(schema.name)
    return f"higher_order::{func.name() if callable(getattr(func, 'name', None)) else func}"


def device_of(*values: Any) -> str:
    """The type of the first tensor's device, or `any` where there is no tensor."""
    for value in values:
        if isinstance(value, torch.Tensor):
            return value.device.type
        if isinstance(value, (tuple, list)) and (device := device_of(*value)) != "any":
            return device
    return "any"


def _matters(name: str, args: tuple[Any, ...], named: Mapping[str, Any], result: Any) -> bool:
    """Whether a call could have come out otherwise: a choice among equal values was made."""
    judge = _TIES.get(name)
    if judge is None:
        return True
    try:
        with torch.no_grad():
            return args[0].numel() > 1 and judge(args, named, result)
    except Exception:
        return True  # what cannot be judged is told rather than passed over


def _topk_ties(args: tuple[Any, ...], named: Mapping[str, Any], result: Any) -> bool:
    """Chosen values that equal each other, or one that was left out."""
    dimension = _argument_at(args, named, 2, "dim", -1)
    largest = bool(_argument_at(args, named, 3, "largest", default=True))
    values = result[0]
    if values.numel() == 0:
        return False
    order = values.sort(dim=dimension, stable=True)[0]
    border = order.select(dimension, 0 if largest else -1).unsqueeze(dimension)
    many_at_border = (args[0] == border).sum(dimension) > (values == border).sum(dimension)
    return bool(many_at_border.any()) or _equal_neighbours(order, dimension)


def _sort_ties(args: tuple[Any, ...], named: Mapping[str, Any], result: Any) -> bool:
    if named.get("stable"):
        return False
    place = 2 if "stable" in named or isinstance(_at(args, 1), bool) else 1
    return _equal_neighbours(result[0], _argument_at(args, named, place, "dim", -1))


def _kthvalue_ties(args: tuple[Any, ...], named: Mapping[str, Any], result: Any) -> bool:
    dimension = _argument_at(args, named, 2, "dim", -1)
    values = result[0] if _argument_at(args, named, 3, "keepdim", default=False) else None
    chosen = result[0].unsqueeze(dimension) if values is None else values
    return bool(((args[0] == chosen).sum(dimension) > 1).any())


def _equal_neighbours(ordered: torch.Tensor, dimension: int) -> bool:
    length = ordered.shape[dimension] - 1
    if length < 1:
        return False
    first, second = (ordered.narrow(dimension, start, length) for start in (0, 1))
    return bool((first == second).any())


def _at(args: tuple[Any, ...], place: int) -> Any:
    return args[place] if len(args) > place else None


def _argument_at(
    args: tuple[Any, ...], named: Mapping[str, Any], place: int, name: str, default: Any
) -> Any:
    return args[place] if len(args) > place else named.get(name, default)


_TIES: Final[dict[str, Callable[[tuple[Any, ...], Mapping[str, Any], Any], bool]]] = {
    "aten::topk": _topk_ties,
    "aten::sort": _sort_ties,
    "aten::kthvalue": _kthvalue_ties,
}
