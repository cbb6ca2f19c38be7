"""`repro-gate init`: the files of a first gate call, and the commands that come next."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gate.commands.init_view import init_text
from gate.commands.options import console
from gate.commands.program import FILES, INTERRUPTS
from gate.errors import SettingsError
from gate.pipelines.init import (
    DEFAULT_MAX_STEPS,
    given_config,
    given_training,
    ignored_data,
    look,
    needs_training,
    one_training,
    planned,
    settings_file,
    trainings_below,
    work_tree_root,
    write_plan,
    written,
)
from gate.pipelines.records_scaffold import Training
from gate.system.gate_names import GATE_ID
from gate.system.git.repository import GitRepository
from gate.text.untrusted_text import safe_line


def init_command(
    command: Annotated[
        str, typer.Option(help="What trains, such as `python train.py`; default: looked for.")
    ] = "",
    config: Annotated[
        str,
        typer.Option(
            "--config", "-c", help="Settings file to write; default: repro-gate.yml at the root."
        ),
    ] = "",
    gate_id: Annotated[
        str, typer.Option(help="Id of this gate; default: made from the settings file's path.")
    ] = "",
    max_steps: Annotated[
        int,
        typer.Option(
            min=1,
            max=100_000,
            help="Optimizer steps to train: enough to reach each part of the training once.",
        ),
    ] = DEFAULT_MAX_STEPS,
) -> None:
    """Write settings and workflow for a project.

    Looks for the training script. Writes repro-gate.yml, a workflow and lines of .gitignore at the
    root of the work tree, and prints what to type next. A file that is there already stays as it
    is; a second training gets a settings file, an id and a workflow of its own.

    Example: repro-gate init --command "python train.py"
    """
    start = Path.cwd()
    git = GitRepository(start)
    top = work_tree_root(git)
    tree = look(top, FILES, git)
    if gate_id and not GATE_ID.match(gate_id):
        raise SettingsError(
            f"--gate-id {safe_line(gate_id)!r} is not the id of a gate",
            hint="Use at most 40 letters, digits, dots, hyphens and underscores, such as `nlp`.",
        )
    path = given_config(config, start, top) if config else ""
    training = None
    if command or needs_training(top, FILES, path):
        found = trainings_below(tree, path)
        # one question at most, and none where nobody would answer it
        if not command and len(found) != 1 and sys.stdin.isatty() and sys.stdout.isatty():
            command = _asked(found)
        training = (
            given_training(command, found, FILES, top, start)
            if command
            else one_training(found, max_steps)
        )
    path, training = settings_file(top, FILES, path, training)
    plan = planned(top, FILES, tree, training, max_steps, config=path, gate_id=gate_id)
    write_plan(top, FILES, tree, plan)
    folder = "" if start.resolve() == top.resolve() else str(top)
    data = ignored_data(top, FILES, git, path)
    done = replace(written(tree, git, plan, max_steps, folder), ignored_data=data)
    console().print(init_text(done), soft_wrap=True)


def _asked(found: tuple[Training, ...]) -> str:
    """The command that a person types or takes from the list by its number; empty for neither."""
    for number, training in enumerate(found, start=1):
        typer.echo(f"  {number}  {safe_line(training.command)}  ({safe_line(training.why)})")
    what = "Which of them trains? Its number, or a command" if found else "Which command trains?"
    typer.echo(f"{what}: ", nl=False)
    INTERRUPTS.wait_for_input(sys.stdin.fileno())
    # nothing at all: the input has ended (Ctrl-D)
    answer = sys.stdin.buffer.readline().decode("utf-8", "replace").strip()
    if answer.isascii() and answer.isdigit() and 1 <= int(answer) <= len(found):
        return found[int(answer) - 1].command
    return answer
