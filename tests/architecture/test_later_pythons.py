"""Nothing here rests on what Python 3.14 has removed, and byte code is read in one place alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from module_imports import GATE, parsed

# "What's new in Python 3.14", the sections about what was removed
REMOVED = {
    "ast": {"Num", "Str", "Bytes", "NameConstant", "Ellipsis"},
    "asyncio": {
        *("AbstractChildWatcher", "FastChildWatcher", "MultiLoopChildWatcher", "PidfdChildWatcher"),
        *("SafeChildWatcher", "ThreadedChildWatcher", "get_child_watcher", "set_child_watcher"),
    },
    "importlib.abc": {"ResourceReader", "Traversable", "TraversableResources"},
    "itertools": {"__copy__", "__deepcopy__", "__reduce__"},
    "pkgutil": {"find_loader", "get_loader"},
    "pty": {"master_open", "slave_open"},
    "sqlite3": {"version", "version_info"},
    "urllib.parse": {"Quoter", "ResultBase"},
    "urllib.request": {"URLopener", "FancyURLopener"},
}
# each release of Python has a byte code of its own: who reads it names opcodes and nothing else
BYTE_CODE = {"harness/sources/splits.py": {"LOAD_GLOBAL", "LOAD_NAME", "STORE_NAME", "BUILD_SET"}}
READS_BYTE_CODE = frozenset(("co_code", "_co_code_adaptive", "co_lnotab"))


def used(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """What a module takes of others by name: `ast.Num`, and `from ast import Num`."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node.value)
            yield names.get(name, name), node.attr


def removed(tree: ast.Module) -> list[str]:
    return [f"{of}.{name}" for of, name in used(tree) if name in REMOVED.get(of, ())]


def reads_byte_code(tree: ast.Module) -> bool:
    of_modules = {
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    return bool(of_modules & {"dis", "opcode"}) or any(
        isinstance(node, ast.Attribute) and node.attr in READS_BYTE_CODE for node in ast.walk(tree)
    )


def sources() -> dict[str, Path]:
    return {path.relative_to(GATE).as_posix(): path for path in GATE.rglob("*.py")}


def test_nothing_is_used_that_python_3_14_has_removed() -> None:
    found = {name: removed(parsed(path)) for name, path in sources().items()}
    assert {name: each for name, each in found.items() if each} == {}


def test_what_was_removed_is_seen_by_either_way_to_import_it() -> None:
    text = "import ast as a\nfrom pkgutil import find_loader\nx = a.Num, a.Name, y.Num\n"
    assert removed(ast.parse(text)) == ["pkgutil.find_loader", "ast.Num"]


def test_byte_code_is_read_in_one_place_by_names_of_opcodes() -> None:
    found = {name for name, path in sources().items() if reads_byte_code(parsed(path))}
    assert found == BYTE_CODE.keys()
    for name, opcodes in BYTE_CODE.items():
        tree = parsed(GATE / name)
        texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        named = {text for text in texts if isinstance(text, str) and text.isupper() and "_" in text}
        assert named == opcodes
    assert reads_byte_code(ast.parse("import dis"))
    assert reads_byte_code(ast.parse("x = f.__code__.co_code"))
