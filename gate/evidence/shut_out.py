"""Why no process loaded the harness, as far as the command itself shows it."""

from __future__ import annotations

from gate.evidence.children import UnattestedChild, started_without
from gate.evidence.processes import PythonCommand, python_commands

REASONS = {
    "I": "runs in isolated mode and ignores PYTHONPATH",
    "E": "ignores PYTHONPATH and every other PYTHON* variable",
    "S": "does not run sitecustomize",
}
CLEARED = "gets an empty environment or a different PYTHONPATH"
GENERAL = (
    "The command must start Python, import torch, and keep PYTHONPATH: python -I, -E or -S and a "
    "cleared environment keep the harness from loading."
)


def reason_of(command: PythonCommand) -> str:
    """What in the words themselves keeps the harness out; empty when nothing does."""
    return REASONS[command.option] if command.option else CLEARED if command.cleared else ""


def shut_out_reason(argv: tuple[str, ...]) -> str:
    """What in the command itself keeps the harness out; empty when nothing does."""
    return next(filter(None, map(reason_of, python_commands(argv))), "")


def shut_out_by(argv: tuple[str, ...], children: tuple[UnattestedChild, ...] = ()) -> str:
    """A hint that names what keeps the harness out, or all that may.

    `children` are those that the training's own processes wrote down.
    """
    if children:
        return f"{started_without(children)}. {GENERAL}"
    for command in python_commands(argv):
        if reason := reason_of(command):
            advice = f"drop -{command.option}" if command.option else "add to it, do not replace it"
            return f"{command.shown} {reason}, so the harness is not loaded: {advice}."
    return GENERAL
