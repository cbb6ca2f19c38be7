"""Benchmarks hand programs to other processes as text: what those import has to be there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))
IMPORT = re.compile(r"^ *from repro_gate_harness\.([\w.]+) import ([\w, ]+)$", re.MULTILINE)
NAMES = [
    (path.name, module, name.strip())
    for path in BENCHMARKS
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


def test_what_a_benchmark_imports_of_the_harness_is_there() -> None:
    assert NAMES, "no benchmark's text imports anything"
    assert [
        f"{benchmark} imports {name} of {module}, which has no such name"
        for benchmark, module, name in NAMES
        if name
        not in _defined((ROOT / "gate/harness" / module.replace(".", "/")).with_suffix(".py"))
    ] == []
