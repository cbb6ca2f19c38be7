"""Translates pydantic's messages about settings into the words of the settings' reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic_core import ErrorDetails

from gate.text.document import Document
from gate.text.documents import KeyPath, description_of

# a longer expression helps no reader
READABLE_PATTERN = 80
KEY = "[key]"
LIST, MAPPING = "must be a list", "must be a mapping of keys to values"
SHAPES = {
    "list_type": LIST,
    "tuple_type": LIST,
    "dict_type": MAPPING,
    "model_type": MAPPING,
    "model_attributes_type": MAPPING,
}


def in_words_of_settings(
    faults: Sequence[ErrorDetails], document: object, model: type[Document]
) -> list[ErrorDetails]:
    """Return the faults at keys of the document, with one message for each key.

    pydantic reports one fault for each alternative of a type. They are joined with "or".
    """
    by_path: dict[KeyPath, ErrorDetails] = {}
    for fault in faults:
        place = fault["loc"]
        if fault["type"] not in {"missing", "extra_forbidden"}:
            place = tuple(_parts_of(document, fault["loc"]))
        words = _words(fault, place, model)
        if place in by_path:
            by_path[place]["msg"] += f", or {words}"
        else:
            by_path[place] = {**fault, "loc": place, "msg": words}
    return list(by_path.values())


def _parts_of(document: object, path: KeyPath) -> Iterator[str | int]:
    """Yield a path's parts that are keys or indices; others name alternatives of a type."""
    for part in path:
        below = _below(document)
        if part in below:
            yield part
            document = below[part]


def _below(document: object) -> dict[str | int, object]:
    if isinstance(document, list):
        return dict(enumerate(document))
    return document if isinstance(document, dict) else {}


def _words(fault: ErrorDetails, place: KeyPath, model: type[Document]) -> str:
    kind, limits = fault["type"], fault.get("ctx", {})
    words = SHAPES.get(kind, fault["msg"])
    if kind == "too_short":
        words = f"must have at least {_counted(limits['min_length'], 'entry', 'entries')}"
    elif kind == "too_long":
        words = f"must have at most {_counted(limits['max_length'], 'entry', 'entries')}"
    elif kind == "string_too_short":
        words = f"must have at least {_counted(limits['min_length'], 'character', 'characters')}"
    elif kind == "string_too_long":
        words = f"must have at most {_counted(limits['max_length'], 'character', 'characters')}"
    elif kind == "string_pattern_mismatch":
        words = _form(str(limits["pattern"]), description_of(model, place))
    if fault["loc"][-1:] == (KEY,):
        return f"is not a valid key: a key {words.replace('Input should be', 'must be')}"
    return words


def _form(pattern: str, description: str) -> str:
    if len(pattern) <= READABLE_PATTERN or not description:
        return f"must match the pattern {pattern}"
    return f"has the wrong form. {description.partition('. ')[0].removesuffix('.')}"


def _counted(count: int, single: str, many: str) -> str:
    return f"{count} {single if count == 1 else many}"
