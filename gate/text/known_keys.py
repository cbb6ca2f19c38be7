"""The key of a document that somebody meant who wrote another one."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import get_args

from pydantic import BaseModel

# a typing error or two of a word; what is further away is another word
NEAR = 0.6
# no known key is longer, and the time grows with the square
MAX_KEY = 80


def nearest_key(model: type[BaseModel], path: tuple[str | int, ...]) -> str:
    """`; did you mean max_steps?` for the unknown key at the end of a path, or the empty text.

    Keys that are equally near are all named.
    """
    key = str(path[-1])[:MAX_KEY]
    likeness = {
        known: SequenceMatcher(None, key, known).ratio() for known in known_keys(model, path)
    }
    best = max(likeness.values(), default=0.0)
    if best < NEAR:
        return ""
    return f"; did you mean {' or '.join(name for name, near in likeness.items() if near == best)}?"


def known_keys(model: type[BaseModel], path: tuple[str | int, ...]) -> tuple[str, ...]:
    """The keys that stand beside the last part of a path, in the order of the document.

    A part that is no key of a model is a place in a list, or a key of a mapping: what is below is
    the same models.
    """
    models: tuple[type[BaseModel], ...] = (model,)
    for part in path[:-1]:
        below = [
            found
            for each in models
            for name, field in each.model_fields.items()
            if part in (name, field.alias)
            for found in _models(field.annotation)
        ]
        models = tuple(below) or models
    return tuple(
        field.alias or name for each in models for name, field in each.model_fields.items()
    )


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    """Every model that an annotation holds: itself, an alternative, an item, a value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)
