"""Records of the standard library as JSON and back, for a command too short to import pydantic.

Half a surrogate pair, which a pickle can hold and UTF-8 cannot, and infinities survive the way.
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
    """How a record is written and checked; a field of type object has whatever JSON can hold.

    A record has fields of text, numbers, enumerations, other records, tuples and unions of them.
    """

    def __init__(self, kind: type[T]) -> None:
        """The form of one kind of records."""
        self._kind = kind

    def dump_json(self, instance: T, /) -> bytes:
        """The record as JSON in ASCII."""
        record = cast("Any", instance)
        return json.dumps(asdict(record) if is_dataclass(instance) else instance).encode("ascii")

    def validate_json(self, data: bytes, /) -> T:
        """The record again; `ValueError` for what has another form."""
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
    # True is an int to Python, and to nobody else
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
