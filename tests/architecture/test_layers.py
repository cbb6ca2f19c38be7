"""The layers of docs/architecture.md as data: imports go down, packages do not know each other."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from module_imports import GATE, ROOT, imported_modules

LAYERS = {
    "errors": 1,
    "records": 2,
    "codec": 3,
    "ports": 4,
    "process_ports": 4,
    "checkpoint": 5,
    "settings": 6,
    "scaffold": 6,
    "baseline": 6,
    "execution": 6,
    "evidence": 6,
    "audit": 6,
    "comparison": 6,
    "checkup": 6,
    "verdict": 6,
    "diagnosis": 6,
    "attestation": 6,
    "report": 6,
    "adapters": 6,
    "reader": 7,
    "pipelines": 8,
    "action": 9,
    "commands": 10,
    "cli": 11,
    "__main__": 12,
}
# Inside a package, from the bottom: its modules and subpackages; "" is every module not named.
INSIDE = {
    "checkpoint": (
        ("dtypes", "parts", "sources.untrusted_file"),
        ("leaves",),
        ("sources", "exclusions"),
        ("pickle", "hashing"),
        ("plain_values",),
        ("state_tree",),
        ("node_leaves",),
        ("formats",),
        ("",),
    ),
    "records": (
        ("document", "determinism"),
        ("gpu", "policy_files"),
        ("sections",),
        ("settings",),
        ("runs",),
        ("observed",),
        ("",),
        ("sealed", "published"),
        ("request", "reading"),
    ),
    "comparison": (("tensors",), ("",), ("measuring", "levels")),
    "evidence": (("processes", "data"), ("logged",), ("",)),
    "report": (("",), ("comment", "terminal", "page")),
    "adapters": (
        ("git.objects", "process", "clock", "console", "machine", "machine_facts", "own_variables"),
        ("files", "job_log"),
        ("git", "account", "github"),
        ("engine", "sigstore", "data", "remote"),
        ("signers",),
        ("isolating", "secrets", "registry", "mlflow"),
    ),
    "pipelines": (
        ("adapters",),
        ("preparation", "packaged_states", "running"),
        ("runs", "saved_states", "head_files", "sealing"),
        ("entry", "baselines", "measurement", "imported_evidence", "compare_commits"),
        ("judging", "shaking"),
        ("gate", "offline"),
        ("publishing",),
        ("delivery", "proposals", "calibration", "reproduction"),
        ("doctor", "init"),
    ),
    "harness": (
        ("settings", "this_process", "user_code", "output", "c_classes", "dispatch_mode"),
        ("cuda",),
        ("tensors",),
        ("determinism", "recording", "operators", "sources", "trials"),
        ("tracing", "shaking"),
        ("lifecycle",),
        ("metrics", "startup"),
    ),
    "action": (
        ("event_request", "commit_status", "history", "base_requirements"),
        ("main", "post_step"),
    ),
}
LINES_OF_A_FUNCTION = 60
TORCH_PACKAGES = {"harness"}
MODULES = sorted(GATE.rglob("*.py"))


def _package(path: Path) -> str:
    return path.relative_to(GATE).parts[0].removesuffix(".py")


def _imported_packages(path: Path) -> set[str]:
    names = (name.split(".") for name in imported_modules(path))
    return {parts[1] for parts in names if parts[0] == "gate" and len(parts) > 1}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_imports_only_from_layers_below(path: Path) -> None:
    package = _package(path)
    if package in {"__init__", "harness"}:
        return
    upward = {
        other
        for other in _imported_packages(path) - {package}
        if LAYERS.get(other, 99) >= LAYERS[package]
    }
    assert not upward, f"{path.name} on layer {LAYERS[package]} imports {sorted(upward)}"


def test_reading_saved_states_is_a_library_of_its_own() -> None:
    imported = {
        other for path in (GATE / "checkpoint").rglob("*.py") for other in _imported_packages(path)
    }
    assert imported <= {"checkpoint", "codec", "errors"}


def _place(name: str, layers: tuple[tuple[str, ...], ...]) -> tuple[int, str]:
    """Layer and package of a module, by the longest name that fits it."""
    rows = [(number, package) for number, layer in enumerate(layers) for package in layer]
    fitting = [row for row in rows if not row[1] or f"{name}.".startswith(f"{row[1]}.")]
    return max(fitting, key=lambda row: len(row[1]))


@pytest.mark.parametrize("package", sorted(INSIDE))
def test_inside_a_package_imports_go_down_too(package: str) -> None:
    upward = []
    for path in sorted((GATE / package).rglob("*.py")):
        name = ".".join(path.relative_to(GATE / package).with_suffix("").parts)
        if path.stem == "__init__":
            continue
        mine = _place(name, INSIDE[package])
        for module in imported_modules(path):
            if not module.startswith(f"gate.{package}.") or not _is_module(module):
                continue
            other = _place(module.removeprefix(f"gate.{package}."), INSIDE[package])
            if other[1] != mine[1] and other[0] >= mine[0]:
                upward.append(f"{name} imports {module}")
    assert not upward


def _is_module(dotted: str) -> bool:
    return (ROOT / f"{dotted.replace('.', '/')}.py").is_file()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_harness_and_gate_do_not_import_each_other(path: Path) -> None:
    packages = _imported_packages(path)
    if _package(path) == "harness":
        assert packages <= {"harness"}, "the harness starts without the rest of gate"
    else:
        assert "harness" not in packages


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_torch_is_imported_in_the_harness_alone(path: Path) -> None:
    roots = {name.split(".")[0] for name in imported_modules(path)}
    assert "torch" not in roots or _package(path) in TORCH_PACKAGES


@pytest.mark.parametrize("path", sorted(GATE.rglob("__init__.py")), ids=str)
def test_package_file_holds_a_docstring_and_nothing_else(path: Path) -> None:
    body = ast.parse(path.read_text("utf-8")).body
    assert len(body) == 1
    assert isinstance(body[0], ast.Expr)


@pytest.mark.parametrize(
    "path",
    sorted([*MODULES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_no_file_is_above_600_lines(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= 600


def _lines_of_code(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """From the `def` to the last line, without the docstring."""
    first = function.body[0]
    told = (first.end_lineno or 0) - first.lineno + 1 if ast.get_docstring(function) else 0
    return (function.end_lineno or 0) - function.lineno + 1 - told


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_stay_below_60_lines(path: Path) -> None:
    functions = [
        node
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert [each.name for each in functions if _lines_of_code(each) >= LINES_OF_A_FUNCTION] == []


def test_every_package_has_a_layer() -> None:
    packages = {_package(path) for path in MODULES} - {"__init__", "harness"}
    assert packages <= LAYERS.keys()


def test_every_own_error_descends_from_the_root() -> None:
    strangers = []
    for path in MODULES:
        if _package(path) in {"errors", "harness"}:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
                if bases & {"Exception", "ValueError", "RuntimeError", "OSError", "BaseException"}:
                    strangers.append(f"{path.name}: {node.name}")
    assert not strangers
