"""Programs that other processes get as text: what those import of the harness has to be there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HARNESS = ROOT / "gate/harness"
# no checker looks into a text: a module that is renamed would be missed where the program runs
PLACES = sorted(
    path
    for folder in ("benchmarks", "gate", "tests/support")
    for path in (ROOT / folder).rglob("*.py")
)
IMPORT = re.compile(
    r"^ *from repro_gate_harness((?:\.\w+)*) import ([\w, ]+?)(?: as \w+)?$", re.MULTILINE
)
NAMES = [
    (path.name, module, name.strip())
    for path in PLACES
    for module, names in IMPORT.findall(path.read_text("utf-8"))
    for name in names.split(",")
]


def _defined(source: Path) -> set[str]:
    tree = ast.parse(source.read_text("utf-8"))
    assigned = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return assigned | {
        node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }


def _is_there(module: str, name: str) -> bool:
    """Whether a module, or a name of one, is where the import looks for it."""
    place = HARNESS / module.lstrip(".").replace(".", "/")
    if place.is_dir():
        return (place / name).with_suffix(".py").is_file() or (place / name).is_dir()
    source = place.with_suffix(".py")
    return source.is_file() and name in _defined(source)


def test_what_a_text_imports_of_the_harness_is_there() -> None:
    assert {path for path, _, _ in NAMES} >= {"probe.py", "harness_workloads.py"}
    assert [
        f"{path}: repro_gate_harness{module} has no {name}"
        for path, module, name in NAMES
        if not _is_there(module, name)
    ] == []
    assert not _is_there(".lifecycle", "nothing")
    assert not _is_there(".nothing", "at_all")
