"""`repro-gate init`: write settings and workflow for a project, and print the next commands.

Files that exist are kept as they are. Names of scripts and folders come from the repository, so
they go through `clean`, `safe_line` or `shlex.quote` before they are printed.
"""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gate.commands.options import console
from gate.commands.program import FILES, INTERRUPTS
from gate.errors import SettingsError
from gate.pipelines.init import (
    DEFAULT_MAX_STEPS,
    given_config,
    given_training,
    ignored_data,
    init_result,
    look,
    needs_training,
    one_training,
    planned,
    settings_file,
    trainings_below,
    work_tree_root,
    write_plan,
)
from gate.pipelines.scaffold import ACTION, DEFAULT_BASELINE, Plan, Training, Written
from gate.report.escape import clean
from gate.report.terminal_lines import filled, step_lines
from gate.settings.gate_settings import FILE_NAME
from gate.system.gate_names import GATE_ID
from gate.system.git.repository import GitRepository
from gate.text.untrusted_text import safe_line

WIDTH = 80
FAST_HELP = (
    "Let a pull request stop after one strict run that equals the baseline, measure no cost in it, "
    "and add a nightly workflow that makes all runs."
)
SHOWN = 4
REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}")
OWNER_LATER = (
    "Replace `org` in the workflow with the owner of the action, or call init with --action."
)


def init_text(done: Written) -> str:
    """Return what was found and written, then the commands to type next, in order."""
    lines = [*_trainings(done), *_files(done.plan), "", "Next:"]
    if done.folder:
        lines += step_lines("Go to the root of the work tree:", f"cd {shlex.quote(done.folder)}")
    ready = "" if done.has_baseline else "; only the baseline is missing"
    at = _at(done.plan)
    lines += [
        *_data(done),
        *_commit(done),
        *step_lines(f"See whether this machine is ready{ready}:", f"repro-gate doctor{at}"),
        *_gate(done),
        *_fast(done.plan),
        *_owner(done.plan),
        *step_lines("For pull requests: set runs-on in the workflow to your runner, and push."),
    ]
    return "\n".join(lines)


def _at(plan: Plan) -> str:
    """Return the `--config` option, or nothing if a call at the root finds the file by itself."""
    return "" if plan.config == FILE_NAME else f" --config {shlex.quote(plan.config)}"


def _gate(done: Written) -> list[str]:
    gate = f"repro-gate gate{_at(done.plan)}"
    if done.has_baseline:
        return step_lines("Train twice and compare with the baseline:", gate)
    usual = done.plan.baseline == DEFAULT_BASELINE
    return [
        *step_lines("Train twice; without a baseline this ends in exit code 1:", gate),
        *step_lines(
            "Accept the result as the baseline; from then on the gate passes:",
            f'repro-gate baseline accept{_at(done.plan)} --reason "first baseline"',
            f"git add {'.repro-gate' if usual else shlex.quote(done.plan.baseline)}",
            'git commit -m "Baseline"',
            gate,
        ),
    ]


def _trainings(done: Written) -> list[str]:
    training = done.plan.training
    if training is None:
        return []
    why = f"{training.script} {training.why}. " if training.why else ""
    where = "" if training.workdir == "." else f" in {training.workdir}"
    text = (
        f"{why}The gate runs `{training.command}`{where} and stops it after {done.max_steps} "
        "optimizer steps."
    )
    if training.runner:
        text += f" `{training.runner}` is left out: a training has no network to update packages."
    return [*filled(clean(text), WIDTH), ""]


def _files(plan: Plan) -> list[str]:
    rows = [f"  written  {path}" for path in plan.new]
    if plan.ignore:
        rows.append(f"  added    to .gitignore: {' '.join(plan.ignore)}")
    return rows + [f"  kept     {path}: it was there already" for path in plan.kept]


def _data(done: Written) -> list[str]:
    """Warn about data that git ignores.

    The gate trains a clean checkout, which lacks such files. Without the warning the first run
    would fail on them.
    """
    return step_lines(clean(done.ignored_data)) if done.ignored_data else []


def _fast(plan: Plan) -> list[str]:
    """Print the settings that `--fast` needs, if the settings file existed before.

    `init` never changes an existing settings file. Without these lines the nightly workflow would
    run beside pull requests that still make all runs.
    """
    nightly = any(path.endswith("-nightly.yml") for path in plan.new)
    if not nightly or plan.config in plan.new:
        return []
    return step_lines(
        f"Add these lines to {plan.config}, which was there already:",
        "runs: {when_reproduced: one}",
        "cost: {when: nightly}",
    )


def _owner(plan: Plan) -> list[str]:
    """Ask for the action's owner while the workflow names the placeholder `org`.

    Such a workflow starts nothing.
    """
    unowned = any("uses: org/" in text for text in plan.new.values())
    return step_lines(OWNER_LATER) if unowned else []


def _commit(done: Written) -> list[str]:
    if not done.has_commit:
        return step_lines(
            "There is no commit yet. The gate trains a commit, data included:",
            "git add .",
            'git commit -m "First commit"',
        )
    lines: list[str] = []
    if done.add:
        names = " ".join(map(shlex.quote, done.add))
        lines += step_lines(
            "Commit them: the gate trains only committed files.",
            f"git add {names}",
            'git commit -m "repro-gate"',
        )
    if done.uncommitted:
        shown = ", ".join(done.uncommitted[:SHOWN])
        more = f" and {len(done.uncommitted) - SHOWN} more" if len(done.uncommitted) > SHOWN else ""
        lines += step_lines(
            f"Commit these too, or add them to .gitignore: {shown}{more}. The gate refuses "
            "uncommitted changes."
        )
    return lines


def init_command(
    *,
    command: Annotated[
        str,
        typer.Option(help="Training command, such as `python train.py`; default: found by search."),
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
    fast: Annotated[bool, typer.Option("--fast", help=FAST_HELP)] = False,
    action: Annotated[
        str, typer.Option(help="Repository of the action on GitHub, such as owner/repro-gate.")
    ] = "",
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
    _refuse(gate_id, action)
    path = given_config(config, start, top) if config else ""
    training = None
    if command or needs_training(top, FILES, path):
        trainings = trainings_below(tree, path)
        # ask only at a terminal: in a script nobody would answer
        if not command and len(trainings) != 1 and sys.stdin.isatty() and sys.stdout.isatty():
            command = _asked(trainings)
        training = (
            given_training(command, trainings, FILES, top, start)
            if command
            else one_training(trainings, max_steps)
        )
    path, training = settings_file(top, FILES, path, training)
    plan = planned(
        *(top, FILES, tree, training, max_steps),
        config=path,
        gate_id=gate_id,
        fast=fast,
        action=action or _asked_owner(),
    )
    write_plan(top, FILES, tree, plan)
    folder = "" if start.resolve() == top.resolve() else str(top)
    data = ignored_data(top, FILES, git, path)
    done = replace(init_result(tree, git, plan, max_steps, folder), ignored_data=data)
    console().print(init_text(done), soft_wrap=True)


def _refuse(gate_id: str, action: str) -> None:
    """Raise `SettingsError` for a gate id or a repository that cannot be put into a workflow."""
    if gate_id and not GATE_ID.match(gate_id):
        raise SettingsError(
            f"--gate-id {safe_line(gate_id)!r} is not the id of a gate",
            hint="Use at most 40 letters, digits, dots, hyphens and underscores, such as `nlp`.",
        )
    if action and not REPOSITORY.fullmatch(action):
        raise SettingsError(
            f"--action {safe_line(action)!r} is not a repository on GitHub",
            hint="Write it as OWNER/NAME, such as `--action owner/repro-gate`.",
        )


def _asked_owner() -> str:
    """Return the repository of the action, such as `owner/repro-gate`.

    Asks only at a terminal, and only while the built-in name is the placeholder `org/...`. An
    answer that is no repository gives the placeholder.
    """
    if not ACTION.startswith("org/") or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return ACTION
    typer.echo(
        "Who owns the action on GitHub? (uses: OWNER/repro-gate@v1; empty: later): ", nl=False
    )
    # a blocking read could miss Ctrl-C until the next key; this wait acts on it at once
    INTERRUPTS.wait_for_input(sys.stdin.fileno())
    answer = sys.stdin.buffer.readline().decode("utf-8", "replace").strip()
    action = answer if "/" in answer else f"{answer}/repro-gate"
    return action if REPOSITORY.fullmatch(action) else ACTION


def _asked(trainings: tuple[Training, ...]) -> str:
    """Ask which command trains, and return it; empty if the input ends or the answer is empty.

    The person types a command, or the number of one in the list.
    """
    for number, training in enumerate(trainings, start=1):
        typer.echo(f"  {number}  {safe_line(training.command)}  ({safe_line(training.why)})")
    what = (
        "Which one is the training? Its number, or a command"
        if trainings
        else "Which command trains?"
    )
    typer.echo(f"{what}: ", nl=False)
    INTERRUPTS.wait_for_input(sys.stdin.fileno())
    # an empty read means that the input has ended (Ctrl-D)
    answer = sys.stdin.buffer.readline().decode("utf-8", "replace").strip()
    if answer.isascii() and answer.isdigit() and 1 <= int(answer) <= len(trainings):
        return trainings[int(answer) - 1].command
    return answer
