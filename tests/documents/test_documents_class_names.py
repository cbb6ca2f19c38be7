"""No text that a reader sees has the name of a class: a rename must not reach into it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

GATE = Path(__file__).resolve().parents[2] / "gate"
SHOWN = ("commands", "report", "verdict")
# two words at least; a name of numpy's or torch's has its module before it
NAME = re.compile(r"(?<![.\w])(?:[A-Z][a-z]+){2,}\b")
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def classes(paths: Iterator[Path]) -> set[str]:
    """Every class that these modules define."""
    return {
        node.name
        for path in paths
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
    }


def texts(source: str) -> Iterator[str]:
    """Every text of a module but its docstrings."""
    tree = ast.parse(source)
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, DOCUMENTED) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in documentation:
            yield node.value if isinstance(node.value, str) else ""


def test_no_text_of_a_report_has_the_name_of_a_class() -> None:
    known = classes(GATE.rglob("*.py"))
    named = [
        f"{path.relative_to(GATE)}: {name}"
        for folder in SHOWN
        for path in sorted((GATE / folder).rglob("*.py"))
        for text in texts(path.read_text("utf-8"))
        for name in NAME.findall(text)
        if name in known
    ]
    assert named == []


def test_a_class_in_a_text_is_seen_and_one_in_a_docstring_is_not() -> None:
    source = '"""MarkdownPart."""\nheads = ("MarkdownPart", 1)\n'
    assert [NAME.findall(text) for text in texts(source)] == [["MarkdownPart"], []]
