"""What goes into an operator call and what comes out: tensors to digest, the rest as short text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch

from ..tensors.digests import StartedDigest, finish_all
from ..tensors.plain_parts import type_and_shape

MAX_LIST: Final = 10_000
MAX_TEXT: Final = 400
MAX_VALUE: Final = 100
MAX_NUMBERS: Final = 8
SAMPLES: Final = 8
# of one call's inputs or outputs together; above it they are not digested
MAX_BYTES: Final = 1 << 30
# the same of a view, which reads nothing: a row of a data set is taken thousands of times
MAX_VIEWED_BYTES: Final = 1 << 20
_NAMED: Final = (torch.dtype, torch.device, torch.layout, torch.memory_format)
# values that no operator has written yet
UNINITIALISED: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty"),
        *("new_empty_strided", "_empty_affine_quantized"),
    )
)


class Given(NamedTuple):
    """An argument or result: one tensor, or the tensors of a list, under its name."""

    name: str
    tensors: list[torch.Tensor]


def given(func: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[list[Given], str]:
    """The tensors of a call by argument, and all its other arguments as text."""
    tensors, words = list[Given](), list[str]()
    for name, value in _arguments(func, args, named):
        found = list(_tensors(value))
        if found:
            tensors.append(Given(name, found))
        elif value is not None:
            words.append(f"{name}={_text(value)}")
    return tensors, ", ".join(words)[:MAX_TEXT]


def written(func: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> list[Given]:
    """The arguments that the operator's schema says are written."""
    return [
        Given(name, found)
        for name, value in _arguments(func, args, named)
        if name in _written_names(func) and (found := list(_tensors(value)))
    ]


def is_view(func: Any) -> bool:
    """Whether what the operator returns is memory of an argument that it does not write."""
    schema = getattr(func, "_schema", None)
    returns = schema.returns if schema is not None else ()
    return any(one.alias_info is not None and not one.alias_info.is_write for one in returns)


def results(result: Any) -> list[Given]:
    """The tensors of a result."""
    several = result if isinstance(result, tuple) else (result,)
    found = ((str(place), list(_tensors(value))) for place, value in enumerate(several))
    return [Given(name, tensors) for name, tensors in found if tensors]


def describe(
    one: Given, *, digest: bool, viewed: bool = False, sample: bool = False
) -> dict[str, Any]:
    """Name, type and shape, device, and the digest as the fast fingerprints take it.

    The digest is empty where the values are not to be read, or cannot be; `viewed`: the operator
    reads none of them.
    """
    first = one.tensors[0]
    shape = type_and_shape(first).removeprefix("torch.")
    if len(one.tensors) > 1:
        # of a list: how many, the first, and all of them in few bytes
        all_of_them = "\n".join(map(type_and_shape, one.tensors)).encode("utf-8", "replace")
        short = hashlib.sha256(all_of_them).hexdigest()[:8]
        shape = f"{len(one.tensors)} tensors, first {shape}, all {short}"
    limit = MAX_VIEWED_BYTES if viewed else MAX_BYTES
    read = _digest(one) if digest and _size_in_bytes(one) <= limit else ""
    return {
        "name": one.name[:MAX_VALUE],
        "form": shape[: 2 * MAX_VALUE],
        "device": str(first.device)[:20],
        "digest": read,
        "sample": _sample(first) if sample and read else [],
    }


def _size_in_bytes(one: Given) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in one.tensors)


def _digest(one: Given) -> str:
    left_out: list[str] = []
    named = ((str(index), tensor) for index, tensor in enumerate(one.tensors))
    started = StartedDigest(named, "", left_out.append, fast=True)
    return "" if left_out else finish_all([started])[0]


def _sample(tensor: torch.Tensor) -> list[str]:
    """Up to eight evenly spaced values, exactly: how far two results are apart can be said."""
    if not tensor.is_floating_point() or not tensor.numel():
        return []
    flat = tensor.detach().reshape(-1)
    stride = max(1, flat.numel() // SAMPLES)
    return [float(value).hex() for value in flat[::stride][:SAMPLES].to(torch.float64).tolist()]


def _arguments(
    func: Any, args: tuple[Any, ...], named: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    schema = getattr(func, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    for place, value in enumerate(args):
        yield (names[place] if place < len(names) else str(place)), value
    yield from named.items()


def _written_names(func: Any) -> set[str]:
    schema = getattr(func, "_schema", None)
    arguments = schema.arguments if schema is not None else ()
    return {
        argument.name
        for argument in arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    }


def _tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list) and depth < MAX_NUMBERS:
        for part in value[:MAX_LIST]:
            yield from _tensors(part, depth + 1)


def _text(value: Any) -> str:
    """A plain value as Python writes it; of anything else its type: an address is no value."""
    if isinstance(value, bool | int | float | complex | str):
        return repr(value)[:MAX_VALUE]
    if isinstance(value, _NAMED):
        return str(value)[:MAX_VALUE]
    if isinstance(value, list | tuple):
        shown = ", ".join(map(_text, value[:MAX_NUMBERS]))
        more = f", ... {len(value)} in all" if len(value) > MAX_NUMBERS else ""
        return f"[{shown}{more}]"[: 2 * MAX_VALUE]
    return f"<{type(value).__name__}>"[:MAX_VALUE]
