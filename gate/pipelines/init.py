"""The files that a first gate call needs: looked for, planned, written; none is overwritten."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Final

from gate.errors import DocumentError, RepositoryError, SettingsError, StorageError
from gate.isolation.confined_look import read_apart
from gate.pipelines.doctor.preconditions import ignored_read
from gate.pipelines.entry import parse_settings_apart
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
# the shallowest first: where there are more, a training is not at the bottom
MAX_SOURCES: Final = 2000
MAX_TEXTS: Final = 50
MAX_LISTED: Final = 20
DEFAULT_MAX_STEPS: Final = 20


def work_tree_root(git: Git) -> Path:
    """The root of the work tree; `RepositoryError` says how to make a repository."""
    try:
        return git.top_level()
    except RepositoryError as fault:
        raise RepositoryError(
            fault.message,
            hint="Run `git init` at the root of the project first: the gate trains a commit.",
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
        # what cannot be printed cannot be typed either
        if name.endswith(".py") and name.isprintable() and not name.startswith(outside)
    ]
    return _read(top, files, sorted(scripts, key=_depth)[:MAX_SOURCES])


def _texts(top: Path, files: Files, names: tuple[str, ...]) -> dict[str, str]:
    telling = [name for name in names if name == PROJECT_FILE or TELLING_FILE.fullmatch(name)]
    return _read(top, files, sorted(telling, key=_depth)[:MAX_TEXTS])


def _read(top: Path, files: Files, names: list[str]) -> dict[str, str]:
    sources: dict[str, str] = {}
    for name in names:
        # a link, a file that is gone or that nobody may read
        with suppress(StorageError):
            data = files.read_bytes(top / name, max_bytes=MAX_SOURCE_BYTES)
            sources[name] = data.decode("utf-8", "replace")
    return sources


def _depth(name: str) -> tuple[int, str]:
    return len(PurePosixPath(name).parts), name


def given_config(config: str, start: Path, top: Path) -> str:
    """The named settings file, relative to the work tree's root; `SettingsError` outside of it."""
    path = (start / config).resolve()
    if not path.is_relative_to(top.resolve()) or path == top.resolve():
        raise SettingsError(
            f"--config {config!r} is not a file in the work tree {top}",
            hint="Name a file such as research/nlp/repro-gate.yml.",
        )
    return path.relative_to(top.resolve()).as_posix()


def needs_training(top: Path, files: Files, config: str) -> bool:
    """Whether a training has to be known: settings that are there name theirs."""
    return not files.exists(top / (config or FILE_NAME))


def trainings_below(tree: WorkTree, config: str) -> tuple[Training, ...]:
    """The trainings in a work tree, the likeliest first: those below a settings file, else all."""
    # somebody else's project may be tried: its scripts are parsed as hostile ones are
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
    return tuple(beside) or trainings


def given_training(
    command: str, trainings: tuple[Training, ...], files: Files, top: Path, start: Path
) -> Training:
    """The training that a command names, typed in the folder `start`, without what enters it.

    Raises `SettingsError` for what the settings could not hold.
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
    # a script that lies beside the one who types, as a shell would find it
    typed_here = any(
        _exists(files, start / word) and not _exists(files, top / word) for word in words
    )
    return Training(command=command, workdir=below if typed_here else ".", runner=runner)


def _exists(files: Files, path: Path) -> bool:
    with suppress(StorageError):
        return files.exists(path)
    # no name of a file: too long, or below one
    return False


def one_training(trainings: tuple[Training, ...], max_steps: int) -> Training:
    """The only one; `SettingsError` with the commands to type when there are none or several."""
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
    """The training; `SettingsError` where it does not start without words that nobody gave."""
    if not training.required:
        return training
    needed = " ".join(f"{option} VALUE" for option in training.required)
    completed = replace(training, command=f"{training.command} {needed}")
    raise SettingsError(
        f"{training.script} does not start without {', '.join(training.required)}",
        hint=f"Name the whole command: {call_with(completed, max_steps)}",
    )


def _and_more(count: int) -> tuple[str, ...]:
    return (f"and {count} more",) if count > 0 else ()


def call_with(training: Training, max_steps: int) -> str:
    """The call of `init` that takes a training."""
    steps = "" if max_steps == DEFAULT_MAX_STEPS else f" --max-steps {max_steps}"
    return f"repro-gate init --command {shlex.quote(training.command)}{steps}"


def _example() -> str:
    return 'repro-gate init --command "python train.py"'


def settings_file(
    top: Path, files: Files, config: str, training: Training | None
) -> tuple[str, Training | None]:
    """The file for a training's settings, and the training as that file has to name it.

    Without a name that is repro-gate.yml, or where it trains something else a file of its own. No
    training stands beside a file that is there and names it. Raises `SettingsError` where a file
    trains something else and no other can be named for it.
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
    """Where a settings file starts its training, from the work tree's root, and the command."""
    data = settings_bytes(top / path, files)
    settings = parse_settings_apart(data, path)
    folder = PurePosixPath(path).parent / settings.train.workdir
    return folder.as_posix(), settings.train.command


def _started(training: Training, config: str = FILE_NAME) -> tuple[str, tuple[str, ...]]:
    folder = PurePosixPath(config).parent / training.workdir
    return folder.as_posix(), tuple(shlex.split(training.command))


def _seen_from(folder: str, training: Training, files: Files, top: Path) -> Training:
    """A training for settings in a folder, which is the topmost that a training there starts in."""
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
    """`SettingsError` for a command that would be right if it were read where the settings lie."""
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
    """What to write; settings that the gate itself could not load are an error here.

    `training` is None for a settings file that is there; its own `gate_id` holds then. `fast` adds
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
    """The settings that are there; None where they cannot be read, which `doctor` reports."""
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
    """Write the new files and append to `.gitignore`; a link on the way is an error."""
    for path, text in plan.new.items():
        files.refuse_links(top / path, below=top)
        files.write_new(top / path, text.encode("utf-8"))
    if plan.ignore:
        lines = with_lines(tree.gitignore, plan.ignore)
        files.append_bytes(top / GITIGNORE, lines.encode("utf-8"))


def ignored_data(top: Path, files: Files, git: Git, config: str) -> str:
    """What to do about a file that the training reads and git ignores; empty where none is seen."""
    try:
        data = settings_bytes(top / config, files)
        settings = parse_settings_apart(data, config)
    except (SettingsError, StorageError, DocumentError):
        # `doctor` reports it
        return ""
    folder = PurePosixPath(config).parent.as_posix()
    ignored = ignored_read(top, "" if folder == "." else folder, settings, files, git)
    if ignored is None:
        return ""
    return f"{ignored.place} reads {ignored.path}, which git ignores. {ignored.ways}"


def init_result(tree: WorkTree, git: Git, plan: Plan, max_steps: int, folder: str) -> Written:
    """What was done, and what is left to commit; `tree` is that before it."""
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
