"""A Python file as syntax: what its names stand for, and what it imports; nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import PurePosixPath
from typing import Final

from gate.text.python_syntax import python_syntax

# of one file, and more than people write
MAX_NODES: Final = 200_000
# of one name and its folders: each is tried in each folder, so long ones would take their square
MAX_NAME: Final = 500
MAX_PARTS: Final = 32
MAX_ROOTS: Final = 64


def parsed(text: str) -> tuple[ast.AST, ...] | None:
    """Every node of a file's syntax; None for what this Python cannot read, or should not."""
    tree = python_syntax(text)
    if tree is None:
        return None
    nodes = tuple(islice(ast.walk(tree), MAX_NODES + 1))
    return nodes if len(nodes) <= MAX_NODES else None


def names_of(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Local name to what it was imported as: `np` is `numpy`, `seed` is `random.seed`."""
    names: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if len(alias.name) > MAX_NAME:
                    continue
                first = alias.name.partition(".")[0]
                names[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if len(node.module) > MAX_NAME:
                continue
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    """`np.random.seed` as `numpy.random.seed`; of a value only the attributes: `.manual_seed`."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(names.get(node.id, node.id) if isinstance(node, ast.Name) else "")
    return ".".join(reversed(parts))


def imported_files(path: str, nodes: Iterable[ast.AST], files: frozenset[str]) -> Iterator[str]:
    """The files of the same folder of files that a file imports, where a name leads to one."""
    folder = PurePosixPath(path).parent
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _found(alias.name, _roots(folder), files)
        elif isinstance(node, ast.ImportFrom):
            level = (folder, *folder.parents)[node.level - 1 : node.level] if node.level else ()
            roots = tuple(level) if node.level else _roots(folder)
            module = node.module or ""
            if len(module) > MAX_NAME:
                continue
            yield from _found(module, roots, files)
            for alias in node.names:
                yield from _found(f"{module}.{alias.name}".strip("."), roots, files)


def _roots(folder: PurePosixPath) -> tuple[PurePosixPath, ...]:
    """Where an absolute import may begin: beside the script, above it, in `src`."""
    above = (folder, *folder.parents)[: MAX_ROOTS // 2]
    return (*above, *(place / "src" for place in above))


def _found(module: str, roots: tuple[PurePosixPath, ...], files: frozenset[str]) -> Iterator[str]:
    if len(module) > 2 * MAX_NAME or module.count(".") >= MAX_PARTS:
        return
    parts = module.split(".") if module else []
    for root in roots:
        for name in (root.joinpath(*parts).as_posix() + ".py" if parts else "",
                     root.joinpath(*parts, "__init__.py").as_posix()):  # fmt: skip
            if name in files:
                yield name
