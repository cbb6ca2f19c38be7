"""What is slow to import is imported by the verbs that need it, and by no other."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from module_imports import parsed

from gate.cli import QUICK_VERBS
from gate.commands.verbs import VERBS

ROOT = Path(__file__).resolve().parents[2]
# the web: GitHub, registries, trackers, vaults, engines, data with an address
WEB = frozenset({"requests", "urllib3", "http", "docker", "sigstore"})
KEYS = frozenset({"cryptography"})
NUMBERS = frozenset({"numpy", "torch", "safetensors"})
SHOWING = frozenset({"typer", "rich", "pydantic"})
# to begin with; what a call asks for comes later
MAY_IMPORT = {
    "action": WEB | NUMBERS | SHOWING,
    "doctor": WEB | NUMBERS | SHOWING,
    "history": WEB | NUMBERS | SHOWING,
    "slo": WEB | NUMBERS | SHOWING,
    "fetch": WEB | NUMBERS | SHOWING,
    "rollback": WEB | NUMBERS | SHOWING | KEYS,
    **dict.fromkeys(("init", "gate", "baseline", "operators", "gameday"), NUMBERS | SHOWING),
    **dict.fromkeys(("cost", "noise", "compare", "shake"), NUMBERS | SHOWING),
    **dict.fromkeys(("seeds", "scaling"), NUMBERS | SHOWING),
    **dict.fromkeys(("run", "judge", "diagnose", "bisect"), NUMBERS | SHOWING | KEYS),
    **dict.fromkeys(("keys", "verify", "reproduce"), NUMBERS | SHOWING | KEYS),
    "audit": SHOWING | KEYS,
    "config-hash": NUMBERS | SHOWING | KEYS,
    "python-call": NUMBERS | SHOWING | KEYS,
    "schema": SHOWING,
    **dict.fromkeys(QUICK_VERBS, frozenset()),
}
MODULES = {name: verb.module for name, verb in VERBS.items()} | QUICK_VERBS
SLOW = WEB | KEYS | NUMBERS | SHOWING
TOLD = """
import sys
from importlib import import_module
import_module(sys.argv[1])
print(*sys.modules)
"""
FROZEN = """
import gc, sys
from gate.cli import main
sys.argv = ["repro-gate", "schema"]
try: main()
finally: print(gc.isenabled(), gc.get_freeze_count(), file=sys.stderr)
"""


def file_of(module: str) -> Path | None:
    path = ROOT / f"{module.replace('.', '/')}.py"
    return path if path.is_file() else None


def imported_at_once(module: str) -> Iterator[str]:
    """Of the module's own level: neither in functions nor for the type checker."""
    path = file_of(module)
    for node in parsed(path).body if path else ():
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def reached(entry: str) -> dict[str, str]:
    """Every module that comes with an entry, with one that imports it."""
    importers, waiting = {entry: ""}, [entry]
    while waiting:
        importer = waiting.pop()
        for name in imported_at_once(importer):
            if name not in importers:
                importers[name] = importer
                waiting.append(name)
    return importers


def test_a_verb_imports_no_more_than_it_needs() -> None:
    needless = {
        f"{verb}: {by} imports {name}"
        for verb, module in MODULES.items()
        for name, by in reached(module).items()
        if name.partition(".")[0] in SLOW - MAY_IMPORT[verb]
    }
    assert needless == set()


@pytest.mark.parametrize("verb", ["gate", "digest"])
def test_nothing_else_brings_it_along(verb: str) -> None:
    command = (sys.executable, "-c", TOLD, MODULES[verb])
    told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    imported = {name.partition(".")[0] for name in told.stdout.split()}
    # Python's own http is imported by pydantic and the like
    assert imported & (SLOW - MAY_IMPORT[verb] - {"http"}) == set()


def test_the_reader_imports_all_before_its_first_child_and_no_way_to_the_web() -> None:
    program = ast.parse((ROOT / "gate" / "pipelines" / "confined_reader.py").read_text("utf-8"))
    later = {
        ast.unparse(node)
        for function in ast.walk(program)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert later == set()
    imported = {name.partition(".")[0] for name in reached("gate.pipelines.confined_reader")}
    assert "numpy" in imported
    assert imported & (WEB | KEYS) == set()


def test_nobody_looks_for_garbage_in_what_a_command_has_imported() -> None:
    command = (sys.executable, "-c", FROZEN)
    told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    collects, frozen = told.stderr.split()
    assert collects == "True"
    # typer and pydantic alone are more
    assert int(frozen) > 10_000
