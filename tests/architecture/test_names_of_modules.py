"""A name means one thing: no two classes share one, and a module looked up by a text exists."""

from __future__ import annotations

import ast
import re

from module_imports import GATE, ROOT, parsed

HARNESS = GATE / "harness"
# `sys.modules.get(f"{__package__}.process")`
LOOKED_UP = re.compile(r"\{__package__\}\.([A-Za-z_.]+)")
# called by their module's name (`precision.install`), or the same thing on two levels
OF_THEIR_MODULE = {"main", "install", "prepare", "run", "show_command"}


def test_no_two_modules_name_a_class_or_function_alike() -> None:
    modules: dict[str, list[str]] = {}
    for path in sorted(GATE.rglob("*.py")):
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                modules.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    shared = {name: paths for name, paths in modules.items() if len(paths) > 1}
    assert {name: paths for name, paths in shared.items() if name not in OF_THEIR_MODULE} == {}
    assert shared.keys() >= OF_THEIR_MODULE


def test_each_own_module_that_is_looked_up_by_its_name_is_there() -> None:
    names = [
        (path.with_name(name.replace(".", "/") + ".py"), path.name)
        for path in sorted(HARNESS.rglob("*.py"))
        for name in LOOKED_UP.findall(path.read_text(encoding="utf-8"))
    ]
    assert names
    assert not [f"{user} looks up {path.name}" for path, user in names if not path.exists()]
