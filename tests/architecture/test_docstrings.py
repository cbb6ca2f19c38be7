"""What a class says of its fields is true: a name between backticks is one of its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

GATE = Path(__file__).resolve().parents[2] / "gate"
NAME = re.compile(r"`([a-z]+(?:_[a-z0-9]+)*)`")
# Words that are no part of a class: values that a field takes, and names of others.
VALUES = frozenset(
    ("any", "auto", "changed", "differs", "distance", "equal", "extra", "fail", "keep")
).union(("lr", "measured", "missing", "none", "off", "restore", "state"))
OTHERS = {
    "finally": "Python's",
    "global": "Python's",
    "hashlib": "Python's",
    "subprocess": "Python's",
    "isolation": "a section of the settings",
    "non_blocking": "torch's",
    "response": "of a RequestException",
    "uses": "a key of the harness's document",
    "workflow_run": "GitHub's",
}


def own_names(node: ast.ClassDef) -> set[str]:
    """Every name and text in a class's code, its docstring left out."""
    found: set[str] = set()
    for part in (inner for statement in node.body[1:] for inner in ast.walk(statement)):
        for kind, name in (
            (ast.Name, "id"),
            (ast.Attribute, "attr"),
            (ast.arg, "arg"),
            (ast.FunctionDef, "name"),
            (ast.Constant, "value"),
        ):
            if isinstance(part, kind):
                found.add(str(getattr(part, name)))
    return found


def strangers(source: str) -> Iterator[str]:
    """Class and word of each docstring that names what the class has not."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            named = NAME.findall(ast.get_docstring(node) or "")
            unknown = set(named) - own_names(node) - VALUES - OTHERS.keys()
            yield from (f"{node.name}: {name}" for name in sorted(unknown))


def test_a_class_explains_only_what_it_has() -> None:
    wrong = {
        path.relative_to(GATE).as_posix(): found
        for path in sorted(GATE.rglob("*.py"))
        if (found := list(strangers(path.read_text("utf-8"))))
    }
    assert wrong == {}


def test_a_field_that_is_gone_is_seen_and_one_that_is_there_is_not() -> None:
    source = 'class A:\n    """`kind` says how, `size` how much."""\n    size: int\n'
    assert list(strangers(source)) == ["A: kind"]
