"""Feeds a nested value of the user's program into a digest, position by position."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from .tensor_digests import OnLeftOut, StartedDigest, finish_all

MAX_DEPTH: Final = 16
# of a mapping in an object
MAX_ENTRIES: Final = 64
_PLAIN: Final = (str, bytes, int, float, complex, bool, type(None))


def start_value(value: object, on_left_out: OnLeftOut) -> StartedDigest:
    """Begin a digest over every tensor, array, number and text inside, with where it stands.

    Objects of other kinds count by the name of their type, since their text may hold an address,
    and by those of their attributes that are tensors, arrays or mappings.
    """
    return StartedDigest(_tensors(value), "batch", on_left_out, fast=True)


def nested_digest(value: object, on_left_out: OnLeftOut) -> str:
    """`algorithm:hex` over the value; waits where a part of it is on a device."""
    return finish_all([start_value(value, on_left_out)])[0]


def _tensors(value: object) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Tensors under their place; whatever is no tensor is a name without one."""
    for place, leaf in nested_leaves("", value, 0):
        if isinstance(leaf, torch.Tensor):
            yield place, leaf
        else:
            yield f"{place}={leaf!a}" if isinstance(leaf, _PLAIN) else f"{place}:{leaf}", None


def nested_leaves(place: str, value: Any, depth: int) -> Iterator[tuple[str, object]]:
    """Each leaf with its place: a tensor, a plain value, or the name of another type in brackets.

    Arrays become tensors of their bytes.
    """
    if isinstance(value, torch.Tensor) or type(value) in _PLAIN:
        yield place, value
    elif depth >= MAX_DEPTH:
        yield place, f"[{type(value).__name__}]"
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from nested_leaves(f"{place}/{key!a}", part, depth + 1)
    elif isinstance(value, list | tuple):
        yield place, f"[{type(value).__name__} of {len(value)}]"
        for position, part in enumerate(value):
            yield from nested_leaves(f"{place}/{position}", part, depth + 1)
    elif type(value).__module__ == "numpy":
        yield f"{place} {value.dtype} {value.shape}", _array(value)
    else:
        if isinstance(value, type) or not dataclasses.is_dataclass(value):
            yield place, f"[{type(value).__name__}]"
        for name, part in _attributes(value):
            yield from nested_leaves(f"{place}.{name}", part, depth + 1)


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    """All fields of a dataclass; of any other object the data in it.

    That is not the model, the tokenizer, the vocabulary or the data set that it may refer to.
    """
    held = getattr(value, "__dict__", None)
    if isinstance(value, type | torch.nn.Module):
        return
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield field.name, getattr(value, field.name)
    elif isinstance(held, dict):
        for name, part in list(held.items()):
            array = type(part).__module__ == "numpy" and hasattr(part, "dtype")
            few = isinstance(part, Mapping) and len(part) <= MAX_ENTRIES
            if array or few or isinstance(part, torch.Tensor):
                yield str(name), part


def _array(value: Any) -> object:
    """A NumPy array or number as its bytes; one of Python objects counts by its shape alone."""
    if value.dtype.hasobject:
        return f"[objects {value.shape}]"
    return torch.frombuffer(bytearray(value.tobytes()), dtype=torch.uint8) if value.nbytes else "[]"
