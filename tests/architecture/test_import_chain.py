"""No chain of imports inside `gate/` is longer than a reader can follow down."""

from __future__ import annotations

from graphlib import TopologicalSorter
from pathlib import Path

from module_imports import GATE, ROOT, dotted, imported_modules

MODULES_IN_A_CHAIN = 14


def _longest_chain(package: Path, root: Path = ROOT) -> list[str]:
    """The modules of one longest chain, each imported by the one before it; packages do not count.

    An import in a function or for types only counts as any other.
    """
    files = {dotted(path, root): path for path in package.rglob("*.py") if path.stem != "__init__"}
    graph = {name: files.keys() & set(imported_modules(path, root)) for name, path in files.items()}
    chains: dict[str, list[str]] = {}
    for name in TopologicalSorter(graph).static_order():
        below = (chains[other] for other in sorted(graph[name]))
        chains[name] = [name, *max(below, key=len, default=[])]
    return max(chains.values(), key=len)


def test_no_chain_of_imports_is_longer_than_can_be_followed() -> None:
    chain = _longest_chain(GATE)
    assert len(chain) <= MODULES_IN_A_CHAIN, " -> ".join(chain)


def test_the_longest_of_several_ways_down_is_the_one_that_counts(tmp_path: Path) -> None:
    package = tmp_path / "planted"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name, source in {
        "top": "from planted import bottom\ndef later():\n    from .middle import step\n",
        "middle": "from planted.bottom import ground",
        "bottom": "import os",
    }.items():
        (package / f"{name}.py").write_text(source, encoding="utf-8")
    chain = ["planted.top", "planted.middle", "planted.bottom"]
    assert _longest_chain(package, tmp_path) == chain
