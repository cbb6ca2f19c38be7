"""Finds trainings in a work tree and generates the files of a first gate call as text."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Final

import yaml

from gate.settings.gate_settings import FILE_NAME, BaselineSettings
from gate.system.gate_names import CHECK, DEFAULT_GATE, artifact_name, check_name, output_folder
from gate.text.strict_syntax import python_syntax

DEFAULT_BASELINE: Final = BaselineSettings().path


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkTree:
    """The content of a work tree without ignored files.

    `names` are the paths of all files from its root. `sources` are the texts of the readable Python
    files. `texts` are those of other files that may show how a training is started. `gitignore` is
    the text of .gitignore, or empty.
    """

    names: tuple[str, ...]
    sources: Mapping[str, str]
    texts: Mapping[str, str] = field(default_factory=dict)
    gitignore: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """A training: its command, its working directory, its script and the sign that it trains.

    `workdir` is relative to the root of the work tree. `script` is empty for a given command.
    `required` are the options without which the script does not start. `runner` is what was removed
    from the front of a given command.
    """

    command: str
    workdir: str = "."
    script: str = ""
    why: str = ""
    required: tuple[str, ...] = ()
    runner: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The files to write: new ones with their text, and lines to append to `.gitignore`.

    `kept` are files that exist and stay unchanged. `config` is the settings file and `baseline` its
    baseline folder, both relative to the root of the work tree.
    """

    training: Training | None
    new: Mapping[str, str]
    kept: tuple[str, ...]
    ignore: tuple[str, ...]
    config: str = FILE_NAME
    baseline: str = DEFAULT_BASELINE


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """What was written, and what the next commands depend on.

    `add` are the files of a first gate call that are not committed yet, `uncommitted` all others.
    `has_baseline` says whether the work tree has a baseline. `folder` is the root of the work tree
    if the call came from another folder, otherwise empty. `ignored_data` is advice about a file
    that the training reads and git ignores.
    """

    plan: Plan
    max_steps: int
    has_commit: bool
    has_baseline: bool
    add: tuple[str, ...]
    uncommitted: tuple[str, ...]
    folder: str = ""
    ignored_data: str = ""


GITIGNORE: Final = ".gitignore"
OUTPUT_FOLDER: Final = "repro-gate-out/"
# `python -m venv` and similar tools create this file at the root of an environment (PEP 405)
ENVIRONMENT_MARK: Final = "pyvenv.cfg"
UNBROKEN: Final = 1_000_000
# YAML 1.1, which PyYAML reads, treats all of these as line ends
LINE_ENDS: Final = frozenset("\n\r\x85\u2028\u2029")


# the action that a workflow calls; a release replaces the owner
ACTION: Final = "org/repro-gate"
# editors use this line to check and complete the file
SCHEMA_LINE: Final = (
    "# yaml-language-server: "
    f"$schema=https://raw.githubusercontent.com/{ACTION}/v1/docs/repro-gate.schema.json\n"
)
FAST_SETTINGS: Final = """\
# Pull requests stop after one strict run that equals the baseline, and measure no cost.
# The nightly workflow makes all runs.
runs:
  when_reproduced: one
cost:
  when: nightly
"""


def settings_text(
    training: Training,
    max_steps: int,
    *,
    gate_id: str = DEFAULT_GATE,
    baseline: str = "",
    fast: bool = False,
) -> str:
    """Return `repro-gate.yml` for a training: the keys without a default, each explained.

    One of several gates gets a `gate_id`, and a `baseline` folder if another settings file in its
    folder has the default one. `fast` lets an unchanged pull request cost a single training.
    """
    workdir = "" if training.workdir == "." else f"  workdir: {scalar(training.workdir)}\n"
    return (
        f"{SCHEMA_LINE}"
        "version: 1\n"
        "train:\n"
        f"  command: {scalar(training.command)}\n"
        f"{workdir}"
        "  # The script is stopped cleanly after this many optimizer steps.\n"
        f"  max_steps: {max_steps}\n"
        f"{_of_its_own('baseline', 'path', baseline)}"
        f"{_of_its_own('report', 'gate_id', gate_id if gate_id != DEFAULT_GATE else '')}"
        f"{FAST_SETTINGS if fast else ''}"
    )


def _of_its_own(section: str, key: str, value: str) -> str:
    return f"{section}:\n  {key}: {scalar(value)}\n" if value else ""


def own_config(training: Training) -> str:
    """Return the settings file of a further training.

    It is in the training's folder, or else named after its script.
    """
    if training.workdir != ".":
        return f"{training.workdir}/{FILE_NAME}"
    words = training.command.split()
    script = training.script or next((word for word in words if word.endswith(".py")), words[-1])
    path = PurePosixPath(script)
    named = "-".join(path.parts[:-1]) or path.stem
    plain = re.sub(r"[^A-Za-z0-9._]+", "-", named).strip("-._")
    return f"repro-gate-{plain or 'second'}.yml"


def own_baseline(config: str, gate_id: str) -> str:
    """Return the baseline folder for a settings file, so that no two files share one."""
    if PurePosixPath(config).name == FILE_NAME:
        return DEFAULT_BASELINE
    return f".repro-gate/{gate_id}/baseline"


def plan_files(
    tree: WorkTree, texts: Mapping[str, str], there: frozenset[str], training: Training | None
) -> Plan:
    """Divide the wanted files into new and kept ones, and list what git has to ignore.

    `there` are the paths of wanted files that exist, as files or anything else.
    """
    return Plan(
        training=training,
        new={path: text for path, text in texts.items() if path not in there},
        kept=tuple(path for path in texts if path in there),
        ignore=_ignore_lines(tree),
    )


def with_lines(text: str, lines: tuple[str, ...]) -> str:
    """Return what to append to a text so that it ends with these lines."""
    gap = "\n" if text and not text.endswith("\n") else ""
    return gap + "".join(f"{line}\n" for line in lines)


def environments(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the folders that are Python environments, with a trailing slash; never the root."""
    paths = (PurePosixPath(name) for name in names)
    return tuple(
        sorted(
            f"{path.parent}/"
            for path in paths
            if path.name == ENVIRONMENT_MARK and len(path.parts) > 1
        )
    )


def _ignore_lines(tree: WorkTree) -> tuple[str, ...]:
    present = {line.strip().strip("/") for line in tree.gitignore.splitlines()}
    # the names leave out environments that git already ignores
    names = (OUTPUT_FOLDER, *map(_pattern, environments(tree.names)))
    return tuple(line for line in names if line.strip("/") not in present)


def _pattern(folder: str) -> str:
    """Return a folder as a line of `.gitignore`, with its special characters escaped."""
    return "".join(f"\\{letter}" if letter in "\\*?[#! " else letter for letter in folder)


def scalar(text: str) -> str:
    """Return a text as YAML on one line, quoted only if necessary."""
    written = yaml.safe_dump(text, default_flow_style=True, width=UNBROKEN, allow_unicode=True)
    line = written.removesuffix("\n").removesuffix("\n...")
    # YAML writes a line end as several lines, whose indentation would not fit the place of use
    return _quoted(text) if LINE_ENDS.intersection(line) else line


def _quoted(text: str) -> str:
    return yaml.safe_dump(text, default_style='"', width=UNBROKEN).removesuffix("\n")


FRAMEWORKS: Final = ("torch", "lightning", "pytorch_lightning", "transformers", "accelerate")
TRAINING_NAME: Final = re.compile(r"(?:main|(?:pre|run_|fine_?)?(?:train|tun)(?:e|ing)?(?:_\w+)?)")
# `main.py` may be anything, but these names alone say that a script trains
TELLING_NAME: Final = re.compile(r"(?:pre|run_)?train(?:ing)?(?:_\w+)?|fine_?tun(?:e|ing)(?:_\w+)?")
NO_TRAINING: Final = re.compile(r"test_.*|.*_test|conftest|setup|__init__")
OPTION: Final = re.compile(r"--?[A-Za-z][A-Za-z0-9_-]{0,60}")
# calls of a script that is nothing but statements: `trainer.fit(model)`, `engine.run(loader)`
STARTS: Final = frozenset(("backward", "fit", "learn", "main", "run", "train"))
TEST_FOLDERS: Final = frozenset(("test", "tests", "site-packages"))
# used only if no training is found elsewhere
OUTSKIRTS: Final = frozenset(("docs", "doc", "example", "examples", "benchmark", "benchmarks"))


def find_trainings(sources: Mapping[str, str]) -> tuple[Training, ...]:
    """Return the scripts that look like a training, the likeliest first.

    `sources` maps paths to texts. A script does something when it is started. To count as a
    training it has to import torch or a framework on top of it. It also has to call `backward`,
    `fit` or a trainer, or have the name of a training. If no script does, those with such a name
    alone count.
    """
    looked = [training for path in sorted(sources) for training in _looked_at(path, sources)]
    central = [training for training in looked if not OUTSKIRTS & set(_parts(training[1].script))]
    for sure in (True, False):
        for choice in (central, looked):
            ranked = [training for sign, training in choice if sign == sure]
            if ranked:
                return tuple(sorted(ranked, key=_order))
    return ()


def _parts(path: str) -> tuple[str, ...]:
    return PurePosixPath(path).parts


def _order(training: Training) -> tuple[bool, bool, int, str]:
    path = PurePosixPath(training.script)
    likely = (path.stem != "train", TRAINING_NAME.fullmatch(path.stem) is None)
    return *likely, len(path.parts), training.script


def _looked_at(path: str, sources: Mapping[str, str]) -> Iterator[tuple[bool, Training]]:
    """Yield a training and whether its text shows it; nothing for a file that is no training."""
    stem = PurePosixPath(path).stem
    if NO_TRAINING.fullmatch(stem) or TEST_FOLDERS & set(_parts(path)):
        return
    named = TRAINING_NAME.fullmatch(stem) is not None
    text = sources[path]
    # parsing a large project takes long, and most files contain none of these words
    if not named and not any(name in text for name in FRAMEWORKS):
        return
    tree = python_syntax(text)
    if tree is None or not _is_script(tree):
        return
    framework = next((name for name in FRAMEWORKS if name in set(_imports(tree))), "")
    sign, packages = _sign(tree), _packages_above(path, tree, sources)
    required = tuple(_required(tree))
    if framework and (sign or named):
        why = f"imports {framework} and {sign or 'has the name of a training'}"
        yield True, replace(_training(path, packages, why), required=required)
    elif TELLING_NAME.fullmatch(stem):
        why = "has the name of a training"
        yield False, replace(_training(path, packages, why), required=required)


def _required(tree: ast.Module) -> Iterator[str]:
    """Yield what `argparse` or click require: options such as `--config`, and words as `CONFIG`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or _called(node) not in {"add_argument", "option"}:
            continue
        needs = any(
            keyword.arg == "required"
            and isinstance(keyword.value, ast.Constant)
            and keyword.value.value is True
            for keyword in node.keywords
        )
        names = [
            word.value
            for word in node.args
            if isinstance(word, ast.Constant) and isinstance(word.value, str)
        ]
        options = [name for name in names if OPTION.fullmatch(name)]
        if needs and options:
            yield max(options, key=len)
        left_out = {keyword.arg for keyword in node.keywords} & {"nargs", "default"}
        if _called(node) == "add_argument" and len(names) == 1 and not left_out:
            yield from (name.upper() for name in names if name.isidentifier())


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _is_script(tree: ast.Module) -> bool:
    """Decide whether a module does more at its start than defining names."""
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return any(
        isinstance(node, ast.For | ast.While)
        or (isinstance(node, ast.If) and _names_main(node.test))
        or (isinstance(node, ast.Expr | ast.Raise) and _starts(node, own))
        for node in _statements(tree.body)
    )


def _starts(statement: ast.stmt, own: set[str]) -> bool:
    """Whether it calls a function of the script, as `sys.exit(main())` and `Fire(main)` do."""
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    handed = {word.id for call in calls for word in call.args if isinstance(word, ast.Name)}
    return any(_called(call) in own | STARTS for call in calls) or bool(handed & own)


def _names_main(test: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Constant) and node.value == "__main__" for node in ast.walk(test)
    )


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run at the start, including those within `with` and `try`."""
    for node in body:
        yield node
        if isinstance(node, ast.With | ast.Try):
            yield from _statements(node.body)


def _sign(tree: ast.Module) -> str:
    """Return in words what in a module trains; empty if nothing does."""
    called = {_called(node) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for name in ("backward", "manual_backward", "fit"):
        if name in called:
            return f"calls {name}()"
    trainer = next((name for name in sorted(called) if name.endswith("Trainer")), "")
    return f"makes a {trainer}" if trainer else ""


def _called(node: ast.AST) -> str:
    """Return the last name of a call, such as `backward` of `loss.backward()`."""
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _packages_above(path: str, tree: ast.Module, sources: Mapping[str, str]) -> int:
    """Return how many folders above a script are packages that its imports need; 0 without."""
    levels = (node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    parts = _parts(path)
    # `from ..data import x` needs two packages above the script. A script that imports its own
    # package by name, such as a console script's module, needs that package.
    named = set(_imports(tree))
    own = [
        len(parts) - 1 - place
        for place, part in enumerate(parts[:-1])
        if part in named and f"{'/'.join(parts[: place + 1])}/__init__.py" in sources
    ]
    depth = max([*levels, *own], default=0)
    if not 0 < depth < len(parts):
        return 0
    above = len(parts) - 1 - depth
    # go up to the outermost package, because other modules are imported by its name
    while above and f"{'/'.join(parts[:above])}/__init__.py" in sources:
        above -= 1
    return len(parts) - 1 - above


def _training(path: str, packages: int, why: str) -> Training:
    """Return the command that starts a script; with relative imports it starts as a module."""
    if not packages:
        return Training(command=shlex.join(("python", path)), script=path, why=why)
    parts = _parts(path)
    above = len(parts) - 1 - packages
    module = ".".join((*parts[above:-1], PurePosixPath(path).stem)).removesuffix(".__main__")
    return Training(
        command=shlex.join(("python", "-m", module)),
        workdir="/".join(parts[:above]) or ".",
        script=path,
        why=why,
    )


WORKFLOW: Final = """\
name: repro-gate
on:
  pull_request:
  merge_group:                    # a merge queue waits for this check
permissions: {}
concurrency:                      # a new push ends the older run
  group: ${{ github.workflow }}-${{ github.ref }}
  cancel-in-progress: true
jobs:
  gate:
    runs-on: ubuntu-latest        # with a GPU: [self-hosted, gpu]
    timeout-minutes: 360          # 12 times train.timeout_seconds
    permissions:
      contents: read
      pull-requests: write        # the comment
    steps:
      - uses: actions/checkout@v7
        with:
          fetch-depth: 0          # the base commit decides
          persist-credentials: false
      - uses: org/repro-gate@v1
      - uses: actions/upload-artifact@v7
        if: ${{ !cancelled() }}   # after a failure too
        with:
          name: repro-gate
          path: repro-gate-out/
          retention-days: 90
      - uses: actions/upload-artifact@v7
        id: page
        if: ${{ !cancelled() }}
        with:
          path: repro-gate-out/report.html
          archive: false          # opens in the browser
          if-no-files-found: ignore
      - uses: org/repro-gate@v1   # links the page
        if: ${{ !cancelled() }}
        with:
          mode: link
          page_url: ${{ steps.page.outputs.artifact-url }}
"""


def with_action(text: str, action: str) -> str:
    """Return a file's text with the project's own place of the action."""
    return text.replace(ACTION, action)


def workflow_path(gate_id: str) -> str:
    """Return the path of a gate's workflow."""
    return f".github/workflows/{artifact_name(gate_id)}.yml"


def workflow_text(config: str, gate_id: str) -> str:
    """Return the workflow of a gate.

    One of several gates gets its own name, check, artifact and output folder.
    """
    if gate_id == DEFAULT_GATE:
        return WORKFLOW
    name, check = artifact_name(gate_id), check_name(gate_id)
    step = "      - uses: org/repro-gate@v1\n"
    given = (
        f"        with:\n          config: {scalar(config)}\n          gate_id: {scalar(gate_id)}\n"
    )
    changes = (
        ("name: repro-gate\non:", f"name: {name}\non:"),
        (f"  {CHECK}:\n", f"  {CHECK}:\n    name: {check}\n"),
        (step, step + given),
        ("          name: repro-gate\n", f"          name: {name}\n"),
        (_LINK, f"{_LINK}          gate_id: {scalar(gate_id)}\n"),
        (f"{output_folder(DEFAULT_GATE)}/", f"{output_folder(gate_id)}/"),
    )
    text = WORKFLOW
    for old, new in changes:
        text = text.replace(old, new)
    return text


_LINK: Final = "          mode: link\n"
_EVENTS: Final = """\
  pull_request:
  merge_group:                    # a merge queue waits for this check
"""
_EVERY_NIGHT: Final = """\
  schedule:
    - cron: "17 3 * * *"          # a scheduled call makes all runs and measures the cost
  workflow_dispatch:
"""
_CONCURRENCY: Final = """\
concurrency:                      # a new push ends the older run
  group: ${{ github.workflow }}-${{ github.ref }}
  cancel-in-progress: true
"""


def nightly_path(gate_id: str) -> str:
    """Return the path of a gate's nightly workflow."""
    return f".github/workflows/{artifact_name(gate_id)}-nightly.yml"


def nightly_text(config: str, gate_id: str) -> str:
    """Return the workflow that calls the gate every night.

    It has no pull request, so it writes no comment, and its check has another name.
    """
    name, check, text = artifact_name(gate_id), check_name(gate_id), workflow_text(config, gate_id)
    changes = (
        (f"name: {name}\non:", f"name: {name}-nightly\non:"),
        (_EVENTS, _EVERY_NIGHT),
        (_CONCURRENCY, ""),
        (f"  {CHECK}:\n", "  nightly:\n"),
        (f"    name: {check}\n", f"    name: {check.replace(CHECK, 'nightly', 1)}\n"),
        ("      pull-requests: write        # the comment\n", ""),
        # drop the step that adds the page's link to a comment
        (text[text.rindex("      - uses:") :], ""),
        (f"          name: {name}\n", f"          name: {name}-nightly\n"),
    )
    for old, new in changes:
        text = text.replace(old, new)
    return text
