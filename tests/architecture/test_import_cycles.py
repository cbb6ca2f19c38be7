"""No module of `gate/` imports itself, by whichever way round, early, late or for types only."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from module_imports import GATE, ROOT, dotted, imported_modules


def _cycle(package: Path, root: Path = ROOT) -> list[str]:
    """The modules of one cycle, each imported by the one behind it; empty where there is none."""
    files = {dotted(path, root): path for path in package.rglob("*.py")}
    graph = {
        name: {other for other in imported_modules(path, root) if other in files and other != name}
        for name, path in files.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def _planted(root: Path, **sources: str) -> Path:
    package = root / "planted"
    (package / "inner").mkdir(parents=True)
    for name, source in sources.items():
        (package / f"{name.replace('__', '/')}.py").write_text(source, encoding="utf-8")
    return package


def test_no_module_takes_part_in_an_import_cycle() -> None:
    assert _cycle(GATE) == []


def test_an_import_in_a_function_closes_a_cycle(tmp_path: Path) -> None:
    late = "def later():\n    from planted.first import begin\n"
    package = _planted(tmp_path, first="from planted import second", second=late)
    assert set(_cycle(package, tmp_path)) == {"planted.first", "planted.second"}


def test_an_import_for_types_closes_a_cycle(tmp_path: Path) -> None:
    typing = "if TYPE_CHECKING:\n    from .first import Kind\n"
    package = _planted(tmp_path, first="import planted.second", second=typing)
    assert set(_cycle(package, tmp_path)) == {"planted.first", "planted.second"}


def test_relative_imports_close_a_cycle_across_subpackages(tmp_path: Path) -> None:
    package = _planted(
        tmp_path, first="from .inner import second", inner__second="from .. import first"
    )
    assert set(_cycle(package, tmp_path)) == {"planted.first", "planted.inner.second"}


def test_modules_that_only_share_a_third_are_no_cycle(tmp_path: Path) -> None:
    package = _planted(
        tmp_path,
        first="from . import third",
        second="from . import first, third",
        third="import os",
    )
    assert _cycle(package, tmp_path) == []
