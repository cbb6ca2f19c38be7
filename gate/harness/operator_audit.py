"""Sees every operator call in an operator audit: by step and place, never in judged runs.

A watched name may have a word in parentheses that picks calls by an argument:
`aten::cumsum(floating)`. An in-place operator is reported by the name of its family, without the
trailing underscore.

Calls inside compiled regions and in threads that the script starts are not seen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .user_code import CodeLine, running_line


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's own lacks types
    """A dispatch mode that also sees higher-order operators."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # as above

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Do not disturb the compiler: some operators exist only inside compiled code."""
        return True


BAG_MODES: Final = ("sum", "mean", "max")
Argument = Callable[[str], Any]


def operator_names(
    func: Any, name: str, args: tuple[Any, ...], named: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the names under which a call may be watched, its own name first."""
    yield name
    family = name.rstrip("_")
    if family != name:
        yield family
    detail = _DETAILS.get(family)
    if detail is not None:
        yield f"{family}({detail(lambda key: _argument(func, args, named, key))})"


def _argument(
    func: Any, args: tuple[Any, ...], named: Mapping[str, Any], argument_name: str
) -> Any:
    """Return an argument by its name in the schema; None if this overload does not have it."""
    for position, argument in enumerate(func._schema.arguments):  # noqa: SLF001 - no public name
        if argument.name == argument_name:
            default = argument.default_value
            return args[position] if position < len(args) else named.get(argument_name, default)
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


# the words in parentheses that the gate's table uses (gate/training/operator_tables.py)
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


MAX_NODES: Final = 500_000


class Placed(Protocol):
    """A file and a line number in it."""

    @property
    def file(self) -> str:
        """The file's name as the user knows it."""

    @property
    def line(self) -> int:
        """The line number, from 1."""


class ForwardLines:
    """Remembers line and module of the forward call behind each node of the autograd graph.

    Autograd creates the node of an operator before the dispatcher reaches the mode, so the newest
    sequence number belongs to the present call. Each thread has its own numbers.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, int, str]] = {}
        self._last = _newest_node()

    def note(self, place: Placed, module: str = "") -> None:
        """Remember a forward call, if it created a node."""
        # autograd numbers its nodes: an unchanged number means that this call made none
        newest = _newest_node()
        if newest != self._last:
            if len(self._known) >= MAX_NODES:
                self._known.clear()
            self._last = newest
            self._known.setdefault(newest, (place.file, place.line, module))

    def of(self, node: Any) -> tuple[str, int, str]:
        """Return file, line and module; empty if the forward call was not seen."""
        return self._known.get(node._sequence_nr(), ("", 0, ""))  # noqa: SLF001 - no public name


def _newest_node() -> int:
    number: int = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined] # noqa: SLF001 - no public name
    return number - 1


# namespaces that torch registers only when it needs them
LATE_NAMESPACES: Final = frozenset(
    (
        *("prim", "c10d_functional", "fsdp", "dynamo", "higher_order", "streams", "device_mesh"),
        *("prepacked", "aoti", "quantized_decomposed", "dtensor", "_inductor_test", "inductor"),
    )
)
OnCall = Callable[[str, str, CodeLine], None]


class DispatchRecorder(DispatchMode):  # type: ignore[no-untyped-call] # torch's own lacks types
    """Reports name, device and line of watched operators and of operators that are not torch's.

    An operator of a backward pass is reported with the line of its forward call.
    """

    def __init__(
        self,
        audited: frozenset[str],
        on_call: OnCall,
        guarded: Callable[[Callable[[], None]], None],
    ) -> None:
        super().__init__()
        self._audited = audited
        # taken before the script imports extensions: a namespace that appears later is theirs
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
        """Run the operator, then look at the call and its result."""
        del types
        named = dict(kwargs or {})
        # the operator runs first, since its result shows whether equal values were in question
        result = func(*args, **named)
        # an error in looking must never reach the training
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
        for operator in operator_names(func, name, args, named):
            if operator in self._audited and _matters(operator, args, named, result):
                self._on_call(operator, device_of(args, result), place)

    def _place(self) -> CodeLine:
        """Return the responsible line; remember it for the backward pass of a forward call."""
        place = running_line()
        if not place.started_backward:
            self._forward.note(place)
            return place
        node: Any = torch._C._current_autograd_node()  # noqa: SLF001 - no public name
        file, line, _ = ("", 0, "") if node is None else self._forward.of(node)
        return CodeLine(file, line, backward=True) if file else place


def namespaces() -> frozenset[str]:
    """Return the namespaces of all operators that are registered now."""
    registered: Any = torch._C._dispatch_get_all_op_names()  # noqa: SLF001 - no public list exists
    return frozenset(name.partition("::")[0] for name in registered)


def operator_name(func: Any) -> str:
    """Return the operator's name without its overload, such as `aten::topk`."""
    schema = getattr(func, "_schema", None)
    if schema is not None:
        return str(schema.name)
    return f"higher_order::{func.name() if callable(getattr(func, 'name', None)) else func}"


def device_of(*values: Any) -> str:
    """Return the type of the first tensor's device, or `any` without a tensor."""
    for value in values:
        if isinstance(value, torch.Tensor):
            return value.device.type
        if isinstance(value, (tuple, list)) and (device := device_of(*value)) != "any":
            return device
    return "any"


def _matters(name: str, args: tuple[Any, ...], named: Mapping[str, Any], result: Any) -> bool:
    """Whether the call chose among equal values, so that another choice was possible."""
    judge = _TIES.get(name)
    if judge is None:
        return True
    try:
        with torch.no_grad():
            return args[0].numel() > 1 and judge(args, named, result)
    except Exception:
        return True  # what cannot be judged is reported rather than passed over


def _topk_ties(args: tuple[Any, ...], named: Mapping[str, Any], result: Any) -> bool:
    """Whether chosen values are equal, or a value equal to the last chosen one was left out."""
    dimension = _argument_at(args, named, 2, "dim", -1)
    largest = bool(_argument_at(args, named, 3, "largest", default=True))
    values = result[0]
    if values.numel() == 0:
        return False
    order = values.sort(dim=dimension, stable=True)[0]
    # the last value that was chosen: if more elements equal it than were chosen, the kernel decided
    # which of them to take
    border = order.select(dimension, 0 if largest else -1).unsqueeze(dimension)
    many_at_border = (args[0] == border).sum(dimension) > (values == border).sum(dimension)
    return bool(many_at_border.any()) or _equal_neighbours(order, dimension)


def _sort_ties(args: tuple[Any, ...], named: Mapping[str, Any], result: Any) -> bool:
    if named.get("stable"):
        return False
    # the overload `sort.stable` has `stable` before `dim`
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


MAX_USES = 1000
MAX_REFUSALS = 100
MAX_SPANS = 500
Span = list[int]


class OperatorCounts:
    """Counts calls by operator and place; `step` returns the step in progress, from 1.

    Beyond `MAX_USES` different uses, calls are only counted in `dropped`.
    """

    def __init__(self, step: Callable[[], int]) -> None:
        self._step = step
        self._uses: dict[tuple[str, ...], list[Span]] = {}
        self._refused: dict[tuple[str, str], dict[str, Any]] = {}
        self._dropped = 0
        self._lock = threading.Lock()

    def count(self, source: str, operator: str, device: str, place: CodeLine) -> None:
        """Count a call; `source` is `alert` for a notice of torch, `call` if the harness saw it."""
        direction = "backward" if place.backward else "forward"
        key = (source, operator, device, direction, place.file, str(place.line))
        with self._lock:
            if key not in self._uses and len(self._uses) >= MAX_USES:
                self._dropped += 1
                return
            self._add(self._uses.setdefault(key, []), self._step())

    def _add(self, spans: list[Span], step: int) -> None:
        """Add to `[first step, last step, calls in each]`, merging steps with equal counts."""
        if spans and spans[-1][0] == spans[-1][1] == step:
            spans[-1][2] += 1
            return
        # no more calls will come for the last step: merge it with the entry before if both have the
        # same count
        if len(spans) > 1 and spans[-2][1] + 1 == spans[-1][0] and spans[-2][2] == spans[-1][2]:
            last = spans.pop()
            spans[-1][1] = last[1]
        if len(spans) < MAX_SPANS:
            spans.append([step, step, 1])
        else:
            self._dropped += 1

    def refuse(self, operator: str, place: CodeLine) -> bool:
        """Record that strict mode refused an operator; return False if that is recorded already."""
        key = (operator, str(place))
        with self._lock:
            if key in self._refused or len(self._refused) >= MAX_REFUSALS:
                return False
            self._refused[key] = {
                "operator": operator,
                "file": place.file,
                "line": place.line,
                "step": self._step(),
            }
        return True

    @property
    def refusals(self) -> list[dict[str, Any]]:
        """The refused operators, in order."""
        return list(self._refused.values())

    @property
    def uses(self) -> list[dict[str, Any]]:
        """The counted uses, in the order of their first calls."""
        return [
            {
                "source": source,
                "operator": operator,
                "device": device,
                "direction": direction,
                "file": file,
                "line": int(line),
                "spans": spans,
            }
            for (source, operator, device, direction, file, line), spans in self._uses.items()
        ]

    @property
    def dropped(self) -> int:
        """The number of calls beyond the limits."""
        return self._dropped
