"""Why no process loaded the harness, as far as the command itself shows it."""

from __future__ import annotations

from gate.evidence.commands import EMPTYING, PYTHON, python_commands, shutting_option
from gate.records.children import UnattestedChild, started_without

REASONS = {
    "I": "runs isolated and ignores PYTHONPATH",
    "E": "ignores PYTHONPATH and every other PYTHON* variable",
    "S": "does not run sitecustomize",
}
GENERAL = (
    "The command must start Python, import torch, and keep PYTHONPATH: python -I, -E or -S and a "
    "cleared environment shut the harness out."
)


def shut_out_by(argv: tuple[str, ...], children: tuple[UnattestedChild, ...] = ()) -> str:
    """A hint that names what keeps the harness out, or all that may.

    `children` are those that the training's own processes wrote down.
    """
    if children:
        return f"{started_without(children)}. {GENERAL}"
    if (cleared := _clears_environment(argv)) is not None:
        return f"{cleared} clears the environment, PYTHONPATH too: set variables without it."
    for place, word in enumerate(argv):
        if PYTHON.match(word):
            letter = shutting_option(argv[place + 1 :])
            if letter:
                return (
                    f"{word} -{letter} {REASONS[letter]}, so the harness stays out: drop -{letter}."
                )
    for command in python_commands(argv):
        if command.option:
            reason = REASONS[command.option]
            return f"{command.shown} {reason}, so the harness stays out: drop -{command.option}."
        if command.cleared:
            return (
                f"{command.shown} gets no PYTHONPATH of the gate's: add to it, do not replace it."
            )
    return GENERAL


def _clears_environment(argv: tuple[str, ...]) -> str | None:
    first = argv[0].rpartition("/")[2] if argv else ""
    if first == "env" and any(word in EMPTYING for word in argv[1:]):
        return "env -i"
    return None
