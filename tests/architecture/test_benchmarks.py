"""Benchmarks hand programs to other processes as text: what those import has to be there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))
IMPORT = re.compile(r"^ *from repro_gate_harness\.([\w.]+) import ([\w, ]+)$", re.MULTILINE)
NAMES = [
    (path.name, module, name.strip())
    for path in BENCHMARKS
    for module, names in IMPORT.findall(path.read_text("utf-8"))
    for name in names.split(",")
]


def test_the_text_of_a_benchmark_imports_something() -> None:
    assert NAMES


@pytest.mark.parametrize(("benchmark", "module", "name"), NAMES)
def test_what_a_benchmark_imports_of_the_harness_is_there(
    benchmark: str, module: str, name: str
) -> None:
    source = (ROOT / "gate/harness" / module.replace(".", "/")).with_suffix(".py")
    tree = ast.parse(source.read_text("utf-8"))
    defined = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    defined |= {
        node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    assert name in defined, f"{benchmark} imports {name} of {source}, which has no such name"
