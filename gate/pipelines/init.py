"""The files that a first gate call needs: looked for, planned, written; none is overwritten."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from gate.errors import RepositoryError, SettingsError, StorageError
from gate.ports import Files, Git
from gate.records.scaffold import Plan, Training, WorkTree, Written
from gate.records.settings import FILE_NAME, BaselineSettings
from gate.scaffold.files import (
    GITIGNORE,
    environments,
    plan_files,
    settings_text,
    with_lines,
)
from gate.scaffold.training_scripts import find_trainings
from gate.scaffold.workflow import WORKFLOW, WORKFLOW_PATH
from gate.settings.load import parse_settings

MAX_GITIGNORE_BYTES: Final = 1024 * 1024
MAX_SOURCE_BYTES: Final = 256 * 1024
# the shallowest first: where there are more, a training is not at the bottom
MAX_SOURCES: Final = 2000
MAX_LISTED: Final = 20
DEFAULT_MAX_STEPS: Final = 20
DEFAULT_BASELINE: Final = BaselineSettings().path


def work_tree_root(git: Git) -> Path:
    """The root of the work tree; `RepositoryError` says how to make a repository."""
    try:
        return git.top_level()
    except RepositoryError as fault:
        raise RepositoryError(
            fault.message,
            hint="Run `git init` at the root of the project first: the gate trains what a commit "
            "holds.",
        ) from fault


def has_commit(git: Git) -> bool:
    """Whether there is a commit to train."""
    try:
        git.resolve("HEAD")
    except RepositoryError:
        return False
    return True


def look(top: Path, files: Files, git: Git) -> WorkTree:
    """Read what the plan depends on; a file that cannot be read is as good as none."""
    ignored = top / GITIGNORE
    text = (
        files.read_bytes(ignored, max_bytes=MAX_GITIGNORE_BYTES) if files.exists(ignored) else b""
    )
    names = git.visible_files()
    return WorkTree(
        names=names, sources=_sources(top, files, names), gitignore=text.decode("utf-8", "replace")
    )


def _sources(top: Path, files: Files, names: tuple[str, ...]) -> dict[str, str]:
    outside = environments(names)
    scripts = [
        name
        for name in names
        # what cannot be printed cannot be typed either
        if name.endswith(".py") and name.isprintable() and not name.startswith(outside)
    ]
    found: dict[str, str] = {}
    for name in sorted(scripts, key=_depth)[:MAX_SOURCES]:
        # a link, a file that is gone or that nobody may read
        with suppress(StorageError):
            data = files.read_bytes(top / name, max_bytes=MAX_SOURCE_BYTES)
            found[name] = data.decode("utf-8", "replace")
    return found


def _depth(name: str) -> tuple[int, str]:
    return len(PurePosixPath(name).parts), name


def needs_training(top: Path, files: Files) -> bool:
    """Whether a training has to be known: settings that are there name theirs."""
    return not files.exists(top / FILE_NAME)


def trainings(tree: WorkTree) -> tuple[Training, ...]:
    """The trainings in a work tree, the likeliest first."""
    return find_trainings(tree.sources)


def given_training(
    command: str, found: tuple[Training, ...], files: Files, top: Path, start: Path
) -> Training:
    """The training that a command names, typed in the folder `start`.

    Raises `SettingsError` for what the settings could not hold.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise SettingsError(
            f"--command: {str(error).lower()}", hint=f"Give it as one word: {_example()}"
        ) from error
    if not words:
        raise SettingsError("--command is empty", hint=f"Name what trains: {_example()}")
    for training in found:
        if training.command == command:
            return training
    here = start.resolve(), top.resolve()
    below = here[0].relative_to(here[1]).as_posix() if here[0].is_relative_to(here[1]) else "."
    # a script that lies beside the one who types, as a shell would find it
    typed_here = any(
        _exists(files, start / word) and not _exists(files, top / word) for word in words
    )
    return Training(command=command, workdir=below if typed_here else ".")


def _exists(files: Files, path: Path) -> bool:
    with suppress(StorageError):
        return files.exists(path)
    # no name of a file: too long, or below one
    return False


def one_training(found: tuple[Training, ...], max_steps: int) -> Training:
    """The only one; `SettingsError` with the commands to type when there are none or several."""
    if len(found) == 1:
        return found[0]
    if not found:
        raise SettingsError(
            "no training found: no Python script here imports torch and trains",
            hint=f"Name the command: {_example()}",
        )
    lines = [
        (f"{training.script} {training.why}", f"  {call_with(training, max_steps)}")
        for training in found[:MAX_LISTED]
    ]
    more = len(found) - MAX_LISTED
    raise SettingsError(
        f"{len(found)} scripts look like a training: name the one to train",
        details=(*(line for pair in lines for line in pair), *_and_more(more)),
    )


def _and_more(count: int) -> tuple[str, ...]:
    return (f"and {count} more",) if count > 0 else ()


def call_with(training: Training, max_steps: int) -> str:
    """The call of `init` that takes a training."""
    steps = "" if max_steps == DEFAULT_MAX_STEPS else f" --max-steps {max_steps}"
    return f"repro-gate init --command {shlex.quote(training.command)}{steps}"


def _example() -> str:
    return 'repro-gate init --command "python train.py"'


def planned(
    top: Path, files: Files, tree: WorkTree, training: Training | None, max_steps: int
) -> Plan:
    """What to write; settings that the gate itself could not load are an error here."""
    wanted = {FILE_NAME: settings_text(training, max_steps) if training else ""}
    wanted[WORKFLOW_PATH] = WORKFLOW
    if training:
        parse_settings(wanted[FILE_NAME].encode("utf-8"), FILE_NAME)
    there = frozenset(path for path in wanted if files.exists(top / path))
    return plan_files(tree, wanted, there, training)


def write_plan(top: Path, files: Files, tree: WorkTree, plan: Plan) -> None:
    """Write the new files and append to `.gitignore`; a link on the way is an error."""
    for path, text in plan.new.items():
        files.refuse_links(top / path, below=top)
        files.write_new(top / path, text.encode("utf-8"))
    if plan.ignore:
        lines = with_lines(tree.gitignore, plan.ignore)
        files.append_bytes(top / GITIGNORE, lines.encode("utf-8"))


def written(tree: WorkTree, git: Git, plan: Plan, max_steps: int, folder: str) -> Written:
    """What was done, and what is left to commit; `tree` is that before it."""
    changed = git.changed_files()
    script = plan.training.script if plan.training else ""
    own = {*plan.new, *plan.kept, GITIGNORE, script}
    return Written(
        plan=plan,
        max_steps=max_steps,
        has_commit=has_commit(git),
        has_baseline=any(name.startswith(f"{DEFAULT_BASELINE}/") for name in tree.names),
        add=tuple(path for path in changed if path in own),
        uncommitted=tuple(path for path in changed if path not in own),
        folder=folder,
    )
