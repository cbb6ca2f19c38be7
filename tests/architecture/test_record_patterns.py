"""The pattern of a field holds for the whole text: pydantic searches for it, from anywhere."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module

import gate
from gate.text.document import Document


def _all_below(kind: type[Document]) -> Iterator[type[Document]]:
    for below in kind.__subclasses__():
        yield below
        yield from _all_below(below)


def _patterns(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        if schema.get("type") == "str" and "pattern" in schema:
            yield str(schema["pattern"])
        for below in schema.values():
            yield from _patterns(below)
    elif isinstance(schema, list | tuple):
        for below in schema:
            yield from _patterns(below)


def test_every_pattern_of_a_record_begins_and_ends_with_its_text() -> None:
    for module in pkgutil.walk_packages(gate.__path__, "gate."):
        if not module.name.startswith(("gate.harness", "gate.__main__")):
            import_module(module.name)
    open_ones = set()
    seen = 0
    for kind in _all_below(Document):
        if not kind.__module__.startswith("gate."):
            continue
        kind.model_rebuild(force=True)
        for pattern in _patterns(kind.__pydantic_core_schema__):
            seen += 1
            if not (pattern.startswith("^") and pattern.endswith("$")):
                open_ones.add((kind.__name__, pattern))
    assert seen > 50
    assert open_ones == set()
