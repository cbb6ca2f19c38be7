"""Dataclass records as JSON and back, for commands that are too short to import pydantic.

Unpaired surrogates, which a pickle can contain and UTF-8 cannot, and infinities are preserved.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from types import UnionType
from typing import Any, Generic, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


class PlainForm(Generic[T]):
    """Serialises and checks one kind of record.

    Fields may be texts, numbers, enumerations, other records, and tuples and unions of them. A
    field of type object may be any JSON value.
    """

    def __init__(self, kind: type[T]) -> None:
        """`kind` is the dataclass of the records."""
        self._kind = kind

    def dump_json(self, instance: T, /) -> bytes:
        """Return the record as JSON in ASCII."""
        record = cast("Any", instance)
        return json.dumps(asdict(record) if is_dataclass(instance) else instance).encode("ascii")

    def validate_json(self, data: bytes, /) -> T:
        """Parse a record; raises `ValueError` if it has another form."""
        return cast("T", _rebuilt(self._kind, json.loads(data)))


def _rebuilt(kind: Any, value: object) -> object:  # noqa: ANN401 - a type, or what stands for one
    if kind is object:
        return value
    if is_dataclass(kind):
        return _record(kind, value)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple and isinstance(value, list):
        return _items(inner, value)
    if origin in {Union, UnionType}:
        return _either(inner, value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    # the exact type, because in Python True is an int
    if origin is None and type(value) is kind:
        return value
    raise ValueError(f"{type(value).__name__} in place of {kind}")


def _record(kind: Any, value: object) -> object:  # noqa: ANN401 - as above
    names = {field.name for field in fields(kind)}
    if not isinstance(value, dict) or value.keys() != names:
        raise ValueError(f"no {kind.__name__}")
    hints = get_type_hints(kind)
    return kind(**{name: _rebuilt(hints[name], value[name]) for name in names})


def _items(inner: Sequence[Any], value: list[object]) -> tuple[object, ...]:
    kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
    if len(kinds) != len(value):
        raise ValueError(f"{len(value)} items in place of {len(kinds)}")
    return tuple(_rebuilt(kind, item) for kind, item in zip(kinds, value, strict=True))


def _either(kinds: Sequence[Any], value: object) -> object:
    for kind in kinds:
        if kind is type(None) and value is None:
            return None
        try:
            return _rebuilt(kind, value)
        except ValueError:
            continue
    raise ValueError(f"{type(value).__name__} in place of any of {kinds}")
