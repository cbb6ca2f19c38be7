"""The floors of docs/architecture.md as data: imports go down, rooms do not know each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GATE = ROOT / "gate"
FLOORS = {
    "errors": 1,
    "records": 2,
    "codec": 3,
    "ports": 4,
    "checkpoint": 5,
    "settings": 6,
    "baseline": 6,
    "execution": 6,
    "evidence": 6,
    "comparison": 6,
    "checkup": 6,
    "verdict": 6,
    "diagnosis": 6,
    "attestation": 6,
    "report": 6,
    "edges": 6,
    "session": 7,
    "delivery": 7,
    "saved_states": 7,
    "reader": 7,
    "head_files": 7,
    "pipeline": 8,
    "measurement": 8,
    "told_runs": 8,
    "entry": 9,
    "commit_status": 9,
    "event_request": 9,
    "action": 10,
    "doctor": 10,
    "post_step": 10,
    "program": 10,
    "options": 11,
    "state_options": 11,
    "baseline_commands": 12,
    "census_commands": 12,
    "diff_command": 12,
    "digest_command": 12,
    "doctor_command": 12,
    "gate_commands": 12,
    "job_commands": 12,
    "measure_commands": 12,
    "schema_command": 12,
    "sealing_commands": 12,
    "verbs": 13,
    "cli": 14,
    "__main__": 15,
}
TORCH_ROOMS = {"harness"}
MODULES = sorted(GATE.rglob("*.py"))


def _room(path: Path) -> str:
    return path.relative_to(GATE).parts[0].removesuffix(".py")


def _imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _imported_rooms(path: Path) -> set[str]:
    names = (name.split(".") for name in _imported_modules(path))
    return {parts[1] for parts in names if parts[0] == "gate" and len(parts) > 1}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_imports_only_from_floors_below(path: Path) -> None:
    room = _room(path)
    if room in {"__init__", "harness"}:
        return
    upward = {
        other for other in _imported_rooms(path) - {room} if FLOORS.get(other, 99) >= FLOORS[room]
    }
    assert not upward, f"{path.name} on floor {FLOORS[room]} imports {sorted(upward)}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_guest_and_gate_do_not_import_each_other(path: Path) -> None:
    rooms = _imported_rooms(path)
    if _room(path) == "harness":
        assert not rooms, "the guest starts without the rest of gate"
    else:
        assert "harness" not in rooms


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_torch_is_imported_in_the_guest_alone(path: Path) -> None:
    roots = {name.split(".")[0] for name in _imported_modules(path)}
    assert "torch" not in roots or _room(path) in TORCH_ROOMS


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
def test_no_file_is_above_400_lines(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= 400


def test_every_room_has_a_floor() -> None:
    rooms = {_room(path) for path in MODULES} - {"__init__", "harness"}
    assert rooms <= FLOORS.keys()


def test_every_own_error_descends_from_the_root() -> None:
    strangers = []
    for path in MODULES:
        if _room(path) in {"errors", "harness"}:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
                if bases & {"Exception", "ValueError", "RuntimeError", "OSError", "BaseException"}:
                    strangers.append(f"{path.name}: {node.name}")
    assert not strangers
