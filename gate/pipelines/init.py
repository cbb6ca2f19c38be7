"""Finds, plans and writes the files of a first gate call; it overwrites no file."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Final

from gate.errors import DocumentError, RepositoryError, SettingsError, StorageError
from gate.isolation.confined_look import read_apart
from gate.pipelines.call_setup import parse_settings_apart
from gate.pipelines.doctor.preconditions import ignored_read
from gate.pipelines.project_start import (
    PROJECT_FILE,
    TELLING_FILE,
    trainings_of,
    without_runner,
)
from gate.pipelines.scaffold import (
    ACTION,
    DEFAULT_BASELINE,
    GITIGNORE,
    Plan,
    Training,
    WorkTree,
    Written,
    environments,
    nightly_path,
    nightly_text,
    own_baseline,
    own_config,
    plan_files,
    settings_text,
    with_action,
    with_lines,
    workflow_path,
    workflow_text,
)
from gate.pipelines.settings_file import settings_bytes
from gate.settings.gate_settings import FILE_NAME, GateSettings
from gate.system.files.port import Files
from gate.system.gate_names import gate_of_config
from gate.system.git.repository import Git
from gate.text.document import command_words
from gate.text.documents import RecordForm

TRAININGS: Final[RecordForm[tuple[Training, ...]]] = RecordForm(tuple[Training, ...])
SMALLER: Final = "Take what was generated out of it, or name a smaller folder."
MAX_GITIGNORE_BYTES: Final = 1024 * 1024
MAX_SOURCE_BYTES: Final = 256 * 1024
# the shallowest files come first, because a training is rarely deep in a large tree
MAX_SOURCES: Final = 2000
MAX_TEXTS: Final = 50
MAX_LISTED: Final = 20
DEFAULT_MAX_STEPS: Final = 20


def work_tree_root(git: Git) -> Path:
    """Return the root of the work tree.

    Outside a repository, raises `RepositoryError` with a hint how to make one.
    """
    try:
        return git.top_level()
    except RepositoryError as fault:
        raise RepositoryError(
            fault.message,
            hint="Run `git init` at the root of the project first: the gate trains a commit.",
        ) from fault


def has_commit(git: Git) -> bool:
    """Decide whether there is a commit to train."""
    try:
        git.resolve("HEAD")
    except RepositoryError:
        return False
    return True


def look(top: Path, files: Files, git: Git) -> WorkTree:
    """Read what the plan depends on; an unreadable file counts as missing."""
    ignored = top / GITIGNORE
    text = (
        files.read_bytes(ignored, max_bytes=MAX_GITIGNORE_BYTES) if files.exists(ignored) else b""
    )
    names = git.visible_files()
    return WorkTree(
        names=names,
        sources=_sources(top, files, names),
        texts=_texts(top, files, names),
        gitignore=text.decode("utf-8", "replace"),
    )


def _sources(top: Path, files: Files, names: tuple[str, ...]) -> dict[str, str]:
    outside = environments(names)
    scripts = [
        name
        for name in names
        # a name that cannot be printed cannot be typed in a command either
        if name.endswith(".py") and name.isprintable() and not name.startswith(outside)
    ]
    return _read(top, files, sorted(scripts, key=_depth)[:MAX_SOURCES])


def _texts(top: Path, files: Files, names: tuple[str, ...]) -> dict[str, str]:
    telling = [name for name in names if name == PROJECT_FILE or TELLING_FILE.fullmatch(name)]
    return _read(top, files, sorted(telling, key=_depth)[:MAX_TEXTS])


def _read(top: Path, files: Files, names: list[str]) -> dict[str, str]:
    sources: dict[str, str] = {}
    for name in names:
        # skip links, vanished files and files without read permission
        with suppress(StorageError):
            data = files.read_bytes(top / name, max_bytes=MAX_SOURCE_BYTES)
            sources[name] = data.decode("utf-8", "replace")
    return sources


def _depth(name: str) -> tuple[int, str]:
    return len(PurePosixPath(name).parts), name


def given_config(config: str, start: Path, top: Path) -> str:
    """Return the named settings file relative to the root of the work tree.

    Raises `SettingsError` for a path outside of it.
    """
    # resolved, because paths in the settings are read from commits and must be inside
    path = (start / config).resolve()
    if not path.is_relative_to(top.resolve()) or path == top.resolve():
        raise SettingsError(
            f"--config {config!r} is not a file in the work tree {top}",
            hint="Name a file such as research/nlp/repro-gate.yml.",
        )
    return path.relative_to(top.resolve()).as_posix()


def needs_training(top: Path, files: Files, config: str) -> bool:
    """Decide whether a training has to be found; an existing settings file names its own."""
    return not files.exists(top / (config or FILE_NAME))


def trainings_below(tree: WorkTree, config: str) -> tuple[Training, ...]:
    """Return the trainings in the settings file's folder or below it, or else all.

    The likeliest training is first.
    """
    # the work tree may be another person's project, so its scripts are parsed as untrusted files
    trainings = read_apart(
        TRAININGS,
        lambda: trainings_of(tree.sources, tree.texts),
        what="the syntax of the scripts",
        hint=SMALLER,
    )
    folder = PurePosixPath(config).parent
    beside = [
        training for training in trainings if PurePosixPath(training.script).is_relative_to(folder)
    ]
    # settings in a folder may still start a script elsewhere, such as at the root
    return tuple(beside) or trainings


def given_training(
    command: str, trainings: tuple[Training, ...], files: Files, top: Path, start: Path
) -> Training:
    """Return the training that a command names, typed in the folder `start`.

    A prefix that only enters an environment is removed. Raises `SettingsError` for a command that
    the settings cannot contain.
    """
    try:
        words = list(command_words(command))
    except ValueError as error:
        raise SettingsError(
            f"--command: {str(error).lower()}", hint=f"Give it as one word: {_example()}"
        ) from error
    if not words:
        raise SettingsError("--command is empty", hint=f"Name what trains: {_example()}")
    words, runner = without_runner(words)
    if runner:
        command = shlex.join(words)
    for training in trainings:
        if training.command == command:
            return replace(training, runner=runner)
    here = start.resolve(), top.resolve()
    below = here[0].relative_to(here[1]).as_posix() if here[0].is_relative_to(here[1]) else "."
    # a script in the folder of the user, as a shell there would find it
    typed_here = any(
        _exists(files, start / word) and not _exists(files, top / word) for word in words
    )
    return Training(command=command, workdir=below if typed_here else ".", runner=runner)


def _exists(files: Files, path: Path) -> bool:
    with suppress(StorageError):
        return files.exists(path)
    # no possible file name: too long, or below a regular file
    return False


def one_training(trainings: tuple[Training, ...], max_steps: int) -> Training:
    """Return the only training.

    Raises `SettingsError` with the commands to choose from if there are none or several.
    """
    if len(trainings) == 1:
        return _complete(trainings[0], max_steps)
    if not trainings:
        raise SettingsError(
            "no training found: no Python script here imports torch and trains",
            hint=f"Name the command: {_example()}",
        )
    lines = [
        (f"{training.script} {training.why}", f"  {call_with(training, max_steps)}")
        for training in trainings[:MAX_LISTED]
    ]
    more = len(trainings) - MAX_LISTED
    raise SettingsError(
        f"{len(trainings)} scripts look like a training: name the one to train",
        details=(*(line for pair in lines for line in pair), *_and_more(more)),
    )


def _complete(training: Training, max_steps: int) -> Training:
    """Return the training; raise `SettingsError` if its required options are not known."""
    if not training.required:
        return training
    needed = " ".join(
        f"{word} VALUE" if word.startswith("-") else word for word in training.required
    )
    completed = replace(training, command=f"{training.command} {needed}")
    raise SettingsError(
        f"{training.script} does not start without {', '.join(training.required)}",
        hint=f"Name the whole command: {call_with(completed, max_steps)}",
    )


def _and_more(count: int) -> tuple[str, ...]:
    return (f"and {count} more",) if count > 0 else ()


def call_with(training: Training, max_steps: int) -> str:
    """Return the `init` command that selects a training."""
    steps = "" if max_steps == DEFAULT_MAX_STEPS else f" --max-steps {max_steps}"
    return f"repro-gate init --command {shlex.quote(training.command)}{steps}"


def _example() -> str:
    return 'repro-gate init --command "python train.py"'


def settings_file(
    top: Path, files: Files, config: str, training: Training | None
) -> tuple[str, Training | None]:
    """Return the settings file for a training, and the training with paths as that file needs them.

    Without `config` that is repro-gate.yml, or a separate file if repro-gate.yml trains something
    else. The training is None if the file exists and names it already. Raises `SettingsError` if a
    file trains something else and no other file can be named.
    """
    if training is None:
        return config or FILE_NAME, None
    path = ""
    for path in (config,) if config else (FILE_NAME, own_config(training)):
        seen = _seen_from(PurePosixPath(path).parent.as_posix(), training, files, top)
        if not files.exists(top / path):
            return path, seen
        if _trains(top, files, path) in {_started(training), _started(seen, path)}:
            return path, None
    folder, command = _trains(top, files, path)
    where = "" if folder == "." else f" in {folder}"
    raise SettingsError(
        f"{path} is there already and trains `{shlex.join(command)}`{where}",
        hint="Name another file for the second training: "
        f"repro-gate init --config FILE.yml --command {shlex.quote(training.command)}",
    )


def _trains(top: Path, files: Files, path: str) -> tuple[str, tuple[str, ...]]:
    """Return where a settings file starts its training, from the root, and the command."""
    data = settings_bytes(top / path, files)
    settings = parse_settings_apart(data, path)
    folder = PurePosixPath(path).parent / settings.train.workdir
    return folder.as_posix(), settings.train.command


def _started(training: Training, config: str = FILE_NAME) -> tuple[str, tuple[str, ...]]:
    folder = PurePosixPath(config).parent / training.workdir
    return folder.as_posix(), tuple(shlex.split(training.command))


def _seen_from(folder: str, training: Training, files: Files, top: Path) -> Training:
    """Return a training with paths relative to the folder of its settings.

    A training cannot start above that folder. Raises `SettingsError` if the command names no file
    in it.
    """
    if folder == ".":
        return training
    workdir = PurePosixPath(training.workdir)
    if workdir.is_relative_to(folder):
        return replace(training, workdir=workdir.relative_to(folder).as_posix())
    below, seen = [], False
    for word in shlex.split(training.command):
        path = workdir / word
        inside = path.is_relative_to(folder) and _exists(files, top / path)
        seen = seen or inside
        below.append(path.relative_to(folder).as_posix() if inside else word)
    if not seen:
        _refuse_told_from_folder(folder, training, files, top)
        raise SettingsError(
            f"settings in {folder} start their training there, and `{training.command}` names no "
            "file in it",
            hint="Give --config a file at the root of the work tree, such as "
            f"{own_config(training)}.",
        )
    return replace(training, command=shlex.join(below), workdir=".")


def _refuse_told_from_folder(folder: str, training: Training, files: Files, top: Path) -> None:
    """Raise `SettingsError` for a command that would only be right inside the settings' folder."""
    words = shlex.split(training.command)
    there = [word for word in words if _exists(files, top / folder / word)]
    if there:
        meant = shlex.join(f"{folder}/{word}" if word in there else word for word in words)
        raise SettingsError(
            f"`{training.command}` is read from the current folder, not from {folder}",
            hint=f"Name the file in {folder}: --command {shlex.quote(meant)}",
        )


def planned(  # noqa: PLR0913 - what was found, and what was asked for
    top: Path,
    files: Files,
    tree: WorkTree,
    training: Training | None,
    max_steps: int,
    *,
    config: str = FILE_NAME,
    gate_id: str = "",
    fast: bool = False,
    action: str = ACTION,
) -> Plan:
    """Return what to write; raise `SettingsError` if the gate could not load the new settings.

    `training` is None for an existing settings file, whose own `gate_id` then applies. `fast` adds
    a nightly workflow. `action` is the action's repository, as `owner/name`.
    """
    baseline = own_baseline(config, gate_id or gate_of_config(config))
    if training is None:
        there = _kept_settings(top, files, config, gate_id)
        gate_id = there.report.gate_id if there else gate_id
        baseline = there.baseline.path if there else baseline
    gate_id = gate_id or gate_of_config(config)
    text = ""
    if training:
        own = baseline if baseline != DEFAULT_BASELINE else ""
        text = settings_text(training, max_steps, gate_id=gate_id, baseline=own, fast=fast)
        # the generated text is checked by the same parser as a user's, before it is written
        parse_settings_apart(text.encode("utf-8"), config)
    planned_files = {config: text, workflow_path(gate_id): workflow_text(config, gate_id)}
    if fast:
        planned_files[nightly_path(gate_id)] = nightly_text(config, gate_id)
    planned_files = {path: with_action(text, action) for path, text in planned_files.items()}
    present = frozenset(path for path in planned_files if files.exists(top / path))
    folder = PurePosixPath(config).parent
    plan = plan_files(tree, planned_files, present, training)
    return replace(plan, config=config, baseline=(folder / baseline).as_posix())


def _kept_settings(top: Path, files: Files, config: str, gate_id: str) -> GateSettings | None:
    """Return the existing settings; None if they are unreadable, which `doctor` reports."""
    try:
        data = settings_bytes(top / config, files)
        settings = parse_settings_apart(data, config)
    except (SettingsError, StorageError, DocumentError):
        return None
    if gate_id and gate_id != settings.report.gate_id:
        raise SettingsError(
            f"{config} is there already, with report.gate_id {settings.report.gate_id}",
            hint="Change it there, or name another file with --config.",
        )
    return settings


def write_plan(top: Path, files: Files, tree: WorkTree, plan: Plan) -> None:
    """Write the new files and append to `.gitignore`; raise for a link in their paths."""
    for path, text in plan.new.items():
        # a link in an unknown work tree could lead the writing to another place
        files.refuse_links(top / path, below=top)
        files.write_new(top / path, text.encode("utf-8"))
    if plan.ignore:
        lines = with_lines(tree.gitignore, plan.ignore)
        files.append_bytes(top / GITIGNORE, lines.encode("utf-8"))


def ignored_data(top: Path, files: Files, git: Git, config: str) -> str:
    """Return advice about a file that the training reads and git ignores, or an empty text."""
    try:
        data = settings_bytes(top / config, files)
        settings = parse_settings_apart(data, config)
    except (SettingsError, StorageError, DocumentError):
        # `doctor` reports the fault of the settings
        return ""
    folder = PurePosixPath(config).parent.as_posix()
    ignored = ignored_read(top, "" if folder == "." else folder, settings, files, git)
    if ignored is None:
        return ""
    return f"{ignored.place} reads {ignored.path}, which git ignores. {ignored.ways}"


def init_result(tree: WorkTree, git: Git, plan: Plan, max_steps: int, folder: str) -> Written:
    """Return what was done and what is left to commit; `tree` is the state before."""
    changed = git.changed_files()
    script = plan.training.script if plan.training else ""
    own = {*plan.new, *plan.kept, GITIGNORE, script}
    return Written(
        plan=plan,
        max_steps=max_steps,
        has_commit=has_commit(git),
        has_baseline=any(name.startswith(f"{plan.baseline}/") for name in tree.names),
        add=tuple(path for path in changed if path in own),
        uncommitted=tuple(path for path in changed if path not in own),
        folder=folder,
    )
