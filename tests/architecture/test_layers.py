"""The listing of docs/architecture.md as data: imports go down it, and never up or sideways.

Each law is one test over all files, which names every offender at once.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from module_imports import GATE, ROOT, imported_modules, parsed

# The listing of docs/architecture.md, from the bottom: a package imports what stands before it.
ORDER = (
    "errors",
    "text",
    "checkpoint",
    "system",
    "isolation",
    "settings",
    "data",
    "training",
    "evidence",
    "comparison",
    "baseline",
    "diagnosis",
    "verdict",
    "package",
    "audit",
    "publishing",
    "fleet",
    "report",
    "pipelines",
    "action",
    "commands",
    "cli",
    "__main__",
)
LAYERS = {package: layer for layer, package in enumerate(ORDER)}
# Inside a package, from the bottom: its modules and subpackages; "" is every module not named.
INSIDE = {
    "checkpoint": (
        ("untrusted_files",),
        ("leaves",),
        ("parts", "byte_sources"),
        ("pickle", "tensor_hashing"),
        ("state_tree",),
        ("formats",),
        ("",),
    ),
    "system": (("",), ("github",)),
    "report": (("",), ("terminal", "page", "comment"), ("outputs", "runner_files")),
    "harness": (
        ("settings", "user_code", "output", "c_classes"),
        ("cuda",),
        ("plain_tensors",),
        ("tensor_digests",),
        ("operator_audit",),
        ("sources.recorded",),
        ("determinism", "recording", "operator_policy", "sources", "trials", "fixed_collectives"),
        ("tracing", "variation_readings"),
        ("varied_surroundings",),
        ("lifecycle",),
        ("metrics", "startup"),
    ),
    "action": (
        ("event_request", "wheel_installer"),
        ("training_packages",),
        ("main", "post_step"),
    ),
}
# Folders of tests that are about no one package of `gate/`: tests/README.md says what each is for.
OF_THE_WHOLE_PROGRAM = {
    "architecture",
    "browser",
    "container",
    "documents",
    "examples",
    "frameworks",
    "fuzz",
    "hostile",
    "interop",
    "python",
    "shipping",
    "slurm",
    "support",
    "vectors",
    "zoo",
}
LINES_OF_A_FILE = 600
LINES_OF_A_FUNCTION = 60
TORCH_PACKAGES = {"harness"}
MODULES = sorted(GATE.rglob("*.py"))


def _package(path: Path) -> str:
    return path.relative_to(GATE).parts[0].removesuffix(".py")


def _imported_packages(path: Path) -> set[str]:
    names = (name.split(".") for name in imported_modules(path))
    return {parts[1] for parts in names if parts[0] == "gate" and len(parts) > 1}


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_modules_import_only_from_layers_below() -> None:
    upward = [
        f"{_name(path)} on layer {LAYERS[_package(path)]} imports gate.{other}"
        for path in MODULES
        if _package(path) not in {"__init__", "harness"}
        for other in sorted(_imported_packages(path) - {_package(path)})
        if LAYERS.get(other, 99) >= LAYERS[_package(path)]
    ]
    assert upward == []


def test_reading_saved_states_is_a_library_of_its_own() -> None:
    imported = {
        other for path in (GATE / "checkpoint").rglob("*.py") for other in _imported_packages(path)
    }
    assert imported <= {"checkpoint", "text", "errors"}


def _place(name: str, layers: tuple[tuple[str, ...], ...]) -> tuple[int, str]:
    """Layer and package of a module, by the longest name that fits it."""
    rows = [(number, package) for number, layer in enumerate(layers) for package in layer]
    fitting = [row for row in rows if not row[1] or f"{name}.".startswith(f"{row[1]}.")]
    return max(fitting, key=lambda row: len(row[1]))


def test_inside_a_package_imports_go_down_too() -> None:
    upward = []
    for package, layers in INSIDE.items():
        for path in sorted((GATE / package).rglob("*.py")):
            name = ".".join(path.relative_to(GATE / package).with_suffix("").parts)
            if path.stem == "__init__":
                continue
            mine = _place(name, layers)
            for module in imported_modules(path):
                if not module.startswith(f"gate.{package}.") or not _is_module(module):
                    continue
                other = _place(module.removeprefix(f"gate.{package}."), layers)
                if other[1] != mine[1] and other[0] >= mine[0]:
                    upward.append(f"gate.{package}.{name} imports {module}")
    assert upward == []


def _is_module(dotted: str) -> bool:
    return (ROOT / f"{dotted.replace('.', '/')}.py").is_file()


def test_harness_and_gate_do_not_import_each_other() -> None:
    assert [
        f"{_name(path)} imports gate.{other}"
        for path in MODULES
        for other in sorted(_imported_packages(path))
        if (other == "harness") != (_package(path) == "harness")
    ] == [], "the harness starts without the rest of gate"


def test_torch_is_imported_in_the_harness_alone() -> None:
    importers = {
        _package(path)
        for path in MODULES
        if "torch" in {name.split(".")[0] for name in imported_modules(path)}
    }
    assert importers == TORCH_PACKAGES


def test_package_files_hold_a_docstring_and_nothing_else() -> None:
    bodies = {path: parsed(path).body for path in MODULES if path.stem == "__init__"}
    assert bodies
    assert [
        _name(path)
        for path, body in bodies.items()
        if len(body) != 1 or not isinstance(body[0], ast.Expr)
    ] == []


def test_no_file_is_above_600_lines() -> None:
    others = (path for folder in ("tests", "examples") for path in (ROOT / folder).rglob("*.py"))
    lines = {path: len(path.read_text("utf-8").splitlines()) for path in (*MODULES, *others)}
    assert {_name(path): count for path, count in lines.items() if count > LINES_OF_A_FILE} == {}


def _lines_of_code(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """From the `def` to the last line, without the docstring."""
    first = function.body[0]
    told = (first.end_lineno or 0) - first.lineno + 1 if ast.get_docstring(function) else 0
    return (function.end_lineno or 0) - function.lineno + 1 - told


def test_functions_stay_below_60_lines() -> None:
    assert [
        f"{_name(path)}:{node.lineno} {node.name} has {_lines_of_code(node)} lines"
        for path in MODULES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if _lines_of_code(node) >= LINES_OF_A_FUNCTION
    ] == []


def test_lines_of_a_function_and_the_layer_of_a_module_are_what_a_reader_counts() -> None:
    longest = ast.parse('def f():\n    """Not counted."""\n' + "    x = 1\n" * 60).body[0]
    assert isinstance(longest, ast.FunctionDef)
    assert _lines_of_code(longest) == 61
    assert _place("comment", INSIDE["report"])[0] > _place("wording", INSIDE["report"])[0]


# the client itself, and Sigstore's services, which have rules of their own
SEND = {"system/http.py", "package/sigstore_services.py"}
SENDERS = {"delete", "get", "head", "patch", "post", "put", "request", "Session", "session"}


def _sends(tree: ast.Module) -> list[int]:
    """Lines where a request is sent by requests itself: unbounded, with what .netrc holds."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and (node.func.value.id, node.func.attr in SENDERS) == ("requests", True)
    ]


def test_requests_are_sent_by_the_one_client() -> None:
    found = {_name(path): lines for path in MODULES if (lines := _sends(parsed(path)))}
    assert {name for name in found if name.removeprefix("gate/") not in SEND} == set()
    assert _sends(ast.parse("requests.put(url, data=b'')")) == [1]


def _lost_texts(tree: ast.Module) -> list[int]:
    """Lines where a text stands alone that is no docstring: the second half of a sentence."""
    held = {
        id(body[place])
        for node in ast.walk(tree)
        if isinstance(body := getattr(node, "body", None), list)
        for place in range(len(body))
        # a docstring, or what documents the field before it
        if place == 0 or isinstance(body[place - 1], ast.AnnAssign)
    }
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and id(node) not in held
        and isinstance(node.value, ast.JoinedStr | ast.Constant)
        and not isinstance(getattr(node.value, "value", ""), type(...))
    ]


def test_no_sentence_loses_its_second_half() -> None:
    lost = {path: lines for path in MODULES if (lines := _lost_texts(parsed(path)))}
    assert lost == {}
    assert _lost_texts(ast.parse('def f():\n    """It."""\n    a = "one "\n    "two"\n')) == [4]


def test_tests_lie_in_the_folder_of_a_package_and_bear_its_name() -> None:
    files = sorted((ROOT / "tests").glob("*/*.py"))
    assert {file.parent.name for file in files} <= set(ORDER) | {"harness"} | OF_THE_WHOLE_PROGRAM
    assert [
        _name(file)
        for file in files
        if file.stem.startswith("test_")
        if not f"{file.stem}_".startswith(f"test_{file.parent.name}_")
        if file.parent.name not in OF_THE_WHOLE_PROGRAM
    ] == []


def test_the_laws_of_the_tests_name_files_that_are_there() -> None:
    text = (ROOT / "tests" / "README.md").read_text("utf-8")
    rows = text[text.index("| without this law |") :].partition("\n\n")[0]
    folder, missing = "", []
    for name in re.findall(r"`([\w/…]+)`", rows):
        folder = name.split("/")[0] if "/" in name else folder
        stem = name.rpartition("/")[2].replace("…", f"test_{folder}")
        if not (
            ROOT / "tests" / folder / f"{stem}.py" if stem else ROOT / "tests" / folder
        ).exists():
            missing.append(name)
    assert missing == []
