"""Every fault says what to do next: a message without a hint leaves its reader alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KINDS = frozenset(re.findall(r"(?m)^class (\w+Error)\(", (ROOT / "gate/errors.py").read_text()))
# their messages are parts of another fault or of a row, which says what to do
TAKEN_UP = frozenset(
    (
        "gate/errors.py",
        "gate/evidence/lock_readers.py",
        "gate/evidence/resume_evidence.py",
        "gate/pipelines/gameday.py",
        "gate/commands/rollback.py",
        "gate/pipelines/rollback.py",
        "gate/publishing/history_branch.py",
        "gate/system/github/pull_requests.py",
    )
)
# it has a hint of its own, and takes what was raised
OF_ITSELF = "InternalError"
# message and hint in one: it lists the commands, or can only be said to who reads the log
WITHOUT = frozenset(
    (
        ("gate/pipelines/init.py", "{} scripts look like a training: name the one to train"),
        ("gate/action/main.py", "this event has no pull request"),
    )
)


def _message(call: ast.Call) -> str:
    first = call.args[0] if call.args else None
    if isinstance(first, ast.Constant):
        return str(first.value)
    if isinstance(first, ast.JoinedStr):
        parts = (p.value if isinstance(p, ast.Constant) else "{}" for p in first.values)
        return "".join(map(str, parts))
    return ""


def _without_hint(path: Path) -> Iterator[tuple[str, str]]:
    name = path.relative_to(ROOT).as_posix()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id not in KINDS - {OF_ITSELF}:
            continue
        if all(keyword.arg not in {"hint", None} for keyword in node.keywords):
            yield name, _message(node)


def test_every_fault_says_what_to_do_next() -> None:
    paths = sorted((ROOT / "gate").rglob("*.py"))
    alone = {
        fault
        for path in paths
        if path.relative_to(ROOT).as_posix() not in TAKEN_UP
        for fault in _without_hint(path)
    }
    assert sorted(alone - WITHOUT) == []
    # a line of this list that holds no fault any more hides the next one
    assert sorted(WITHOUT - alone) == []
