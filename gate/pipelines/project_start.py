"""Finds how a project starts its training in its Makefile, shell scripts and README.

Nothing is run. A command counts only if it could be typed as written, without pipe, variable or
placeholder. A prefix that only enters an environment, such as `uv run`, is removed: a training has
no network to update one.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from gate.pipelines.scaffold import FRAMEWORKS, TELLING_NAME, Training, find_trainings

PROJECT_FILE: Final = "pyproject.toml"
# only files at the root, and shell scripts in it or one folder below
TELLING_FILE: Final = re.compile(
    r"(?:README(?:\.md|\.rst|\.txt)?|Makefile|justfile|(?:[A-Za-z0-9_.-]+/)?[A-Za-z0-9_.-]+\.sh)"
)
MAX_LINE: Final = 1000
RUNNERS: Final = frozenset(("uv", "poetry", "pdm", "pipenv", "rye", "conda", "mamba", "micromamba"))
# options of a runner that can be dropped; any other option may add a package, so it stays
FLAGS: Final = frozenset(
    (
        *("--frozen", "--locked", "--no-sync", "--offline", "--quiet", "-q", "--all-extras"),
        *("--dev", "--no-dev", "--no-capture-output", "--live-stream"),
    )
)
WITH_VALUE: Final = frozenset(
    ("--extra", "--group", "--package", "--project", "--python", "--name", "-n", "-p", "--prefix")
)
BEFORE_A_COMMAND: Final = frozenset(("exec", "nohup", "time"))
PYTHON: Final = re.compile(r"python(?:3(?:\.\d{1,2})?)?", re.ASCII)
SHELL: Final = re.compile(r"[|&;<>$`(){}*?~\[\]]|\.\.\.|/path/to|\bYOUR\b", re.IGNORECASE)
# possessive quantifiers: no backtracking over long runs of blanks in untrusted text
PROMPT: Final = re.compile(r"\A\s*+(?:[$@>] ?)?\s*+")
MODULE: Final = ("-m", "--module")
ENTRY: Final = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)", re.ASCII)


class ShownCommand(NamedTuple):
    """A command in a text: launcher with its options, script or module, arguments and the file."""

    launcher: tuple[str, ...]
    target: str
    arguments: tuple[str, ...]
    file: str


def without_runner(words: list[str]) -> tuple[list[str], str]:
    """Return a command without a prefix that only enters an environment, and that prefix."""
    if len(words) < 3 or words[0] not in RUNNERS or words[1] != "run":  # noqa: PLR2004 - and a program
        return words, ""
    place = 2
    while place < len(words) and words[place].startswith("-"):
        if words[place] in WITH_VALUE:
            place += 1
        elif words[place] == "-m" and words[0] == "uv":
            break
        elif words[place] not in FLAGS:
            return words, ""
        place += 1
    rest = words[place:]
    if not rest:
        return words, ""
    # `uv run` starts a script or a module with its own Python
    own = words[0] == "uv" and (rest[0] == "-m" or rest[0].endswith(".py"))
    return (["python", *rest] if own else rest), " ".join(words[:2])


def trainings_of(sources: Mapping[str, str], texts: Mapping[str, str]) -> tuple[Training, ...]:
    """Return the trainings of a work tree, started as the project itself starts them.

    `sources` are the Python files, `texts` maps the names of other files to their texts.
    """
    trainings = find_trainings(sources)
    if not trainings:
        return tuple(_console_scripts(texts.get(PROJECT_FILE, ""), sources))
    shown = [start for name in sorted(texts) for start in _shown(name, texts[name])]
    return tuple(_started(training, shown) for training in trainings)


def _started(training: Training, shown: list[ShownCommand]) -> Training:
    """Add the launcher or the required options to a training if a text shows them."""
    # commands in a text start at the root, so they do not fit another working directory
    if training.workdir != ".":
        return training
    for shown_start in shown:
        given = {word.partition("=")[0] for word in shown_start.arguments}
        bare = [word for word in shown_start.arguments if not word.startswith("-")]
        options = {word for word in training.required if word.startswith("-")}
        fits = shown_start.target in _names(training.script) and options <= given
        if not fits or len(bare) < len(training.required) - len(options):
            continue
        if shown_start.launcher or training.required:
            own = shlex.split(training.command)
            start = (*shown_start.launcher, shown_start.target) if shown_start.launcher else own
            why = f"{training.why}, and {shown_start.file} shows how it starts"
            command = shlex.join((*start, *shown_start.arguments))
            return replace(training, command=command, why=why, required=())
    return training


def _names(script: str) -> tuple[str, str]:
    module = ".".join(PurePosixPath(script).with_suffix("").parts)
    return script, module.removesuffix(".__main__")


def _shown(name: str, text: str) -> Iterator[ShownCommand]:
    if TELLING_FILE.fullmatch(name) is None:
        return
    # a backslash at the end of a line continues the command
    for line in text.replace("\\\n", " ").splitlines():
        typed = PROMPT.sub("", line)
        if len(typed) > MAX_LINE or SHELL.search(typed):
            continue
        try:
            words = shlex.split(typed, comments=True)
        except ValueError:
            continue
        command = _parsed(without_runner(words)[0], name)
        if command is not None:
            yield command


def _parsed(words: list[str], file: str) -> ShownCommand | None:
    while words and words[0] in BEFORE_A_COMMAND:
        words = words[1:]
    if not words:
        return None
    if PYTHON.fullmatch(words[0]):
        place = 2 if words[1:2] == ["-m"] else 1
        launcher: tuple[str, ...] = ()
    elif words[0] == "torchrun" or words[:2] == ["accelerate", "launch"]:
        ends = (n for n, word in enumerate(words) if word.endswith(".py") or word in MODULE)
        place = next(ends, len(words))
        place += place < len(words) and words[place] in MODULE
        launcher = tuple(words[:place])
    else:
        return None
    if place >= len(words):
        return None
    target = PurePosixPath(words[place]).as_posix()
    return ShownCommand(launcher, target, tuple(words[place + 1 :]), file)


def _console_scripts(project: str, sources: Mapping[str, str]) -> Iterator[Training]:
    """Yield trainings from functions that installed commands call.

    A function counts if its module or the command's name shows a training. The command itself is
    not used, because it imports the installed package, which may differ from the commit.
    """
    try:
        document = tomllib.loads(project)
    # deeply nested TOML exhausts the parser's recursion, and the file is untrusted
    except (tomllib.TOMLDecodeError, RecursionError):
        return
    for entries in (_table(document, "project"), _table(_table(document, "tool"), "poetry")):
        for name, entry in sorted(_table(entries, "scripts").items()):
            match = ENTRY.fullmatch(entry) if isinstance(entry, str) else None
            if match is None:
                continue
            module, function = match.groups()
            below = f"{module.replace('.', '/')}.py"
            for folder in (".", "src"):
                path = below if folder == "." else f"{folder}/{below}"
                trains = any(word in sources.get(path, "") for word in FRAMEWORKS)
                if path in sources and (trains or TELLING_NAME.fullmatch(name)):
                    code = f"from {module} import {function}; {function}()"
                    yield Training(
                        command=shlex.join(("python", "-c", code)),
                        workdir=folder,
                        script=path,
                        why=f"has what the command {name} of {PROJECT_FILE} calls",
                    )


def _table(document: object, key: str) -> dict[str, object]:
    table = document.get(key) if isinstance(document, dict) else None
    return table if isinstance(table, dict) else {}
