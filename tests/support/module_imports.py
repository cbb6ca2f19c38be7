"""Find the imports of the modules in `gate/` by parsing them; no module is executed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GATE = ROOT / "gate"


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file, cached because every architecture test needs all files."""
    return ast.parse(path.read_text("utf-8"))


def dotted(path: Path, root: Path = ROOT) -> str:
    """Return the name under which a file is imported, for example `gate.cli`."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imported_modules(path: Path, root: Path = ROOT) -> tuple[str, ...]:
    """Each name that the file imports, absolute; what comes from a package is named below it too.

    Imports in functions and under `TYPE_CHECKING` count as any other.
    """
    return tuple(_imported(path, root))


def _imported(path: Path, root: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = _source(node, path, root)
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)


def _source(node: ast.ImportFrom, path: Path, root: Path) -> str:
    """Return the module after `from`; each dot after the first leads one package up."""
    if not node.level:
        return node.module or ""
    folder = dotted(path.parent / "__init__.py", root).split(".")
    above = folder[: len(folder) - node.level + 1]
    return ".".join((*above, node.module) if node.module else above)
