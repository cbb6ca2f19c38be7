"""The files of a first gate call, as text, and which scripts of a work tree are trainings."""

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
    """What lies in a work tree, ignored files left out.

    `names` are the paths of all files from its root, `sources` the texts of the Python files among
    them that could be read, `texts` those of files that may show how a training is started,
    `gitignore` the text of the file of that name, empty without one.
    """

    names: tuple[str, ...]
    sources: Mapping[str, str]
    texts: Mapping[str, str] = field(default_factory=dict)
    gitignore: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """A training: its command, where that starts, and the script with what tells a training.

    `workdir` is relative to the work tree's root; `script` is empty for a command that was given.
    `required` are options without which the script does not start, `runner` is what was left out of
    the command that was given.
    """

    command: str
    workdir: str = "."
    script: str = ""
    why: str = ""
    required: tuple[str, ...] = ()
    runner: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The files to write: new ones with their text, and lines for `.gitignore`.

    `kept` are files that are there already and stay as they are. `config` is the settings file,
    relative to the work tree's root, `baseline` the folder of its baseline, seen from there too.
    """

    training: Training | None
    new: Mapping[str, str]
    kept: tuple[str, ...]
    ignore: tuple[str, ...]
    config: str = FILE_NAME
    baseline: str = DEFAULT_BASELINE


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """What was written, and what has to be known for the commands that come next.

    `add` are the files of a first gate call that no commit holds yet, `uncommitted` all others.
    `has_baseline` says whether a baseline lies in the work tree. `folder` is the work tree's root
    where the call came from another one, else empty. `ignored_data` says what to do about a file
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
# what `python -m venv` and its like leave at the root of an environment (PEP 405)
ENVIRONMENT_MARK: Final = "pyvenv.cfg"
UNBROKEN: Final = 1_000_000
# of YAML 1.1, which PyYAML reads
LINE_ENDS: Final = frozenset("\n\r\x85\u2028\u2029")


# which action a workflow calls; a release replaces the owner
ACTION: Final = "org/repro-gate"
# editors check and complete the file by it
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
    """`repro-gate.yml` for a training: the keys that have no default, each explained.

    One of several gates gets its `gate_id`, and a folder for its `baseline` where another settings
    file of its folder has the usual one. `fast`: a pull request costs one training where nothing
    changed.
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
    """The settings file of a training beside others: in its folder, else named after its script."""
    if training.workdir != ".":
        return f"{training.workdir}/{FILE_NAME}"
    words = training.command.split()
    script = training.script or next((word for word in words if word.endswith(".py")), words[-1])
    path = PurePosixPath(script)
    named = "-".join(path.parts[:-1]) or path.stem
    plain = re.sub(r"[^A-Za-z0-9._]+", "-", named).strip("-._")
    return f"repro-gate-{plain or 'second'}.yml"


def own_baseline(config: str, gate_id: str) -> str:
    """The baseline's folder, as a settings file names it: no two files share one."""
    if PurePosixPath(config).name == FILE_NAME:
        return DEFAULT_BASELINE
    return f".repro-gate/{gate_id}/baseline"


def plan_files(
    tree: WorkTree, texts: Mapping[str, str], there: frozenset[str], training: Training | None
) -> Plan:
    """Which of the wanted files are new, which stay as they are, and what git shall ignore.

    `there` names what has the path of a wanted file, whatever it is.
    """
    return Plan(
        training=training,
        new={path: text for path, text in texts.items() if path not in there},
        kept=tuple(path for path in texts if path in there),
        ignore=_ignore_lines(tree),
    )


def with_lines(text: str, lines: tuple[str, ...]) -> str:
    """What has to be appended to a text, so that it ends with these lines."""
    gap = "\n" if text and not text.endswith("\n") else ""
    return gap + "".join(f"{line}\n" for line in lines)


def environments(names: tuple[str, ...]) -> tuple[str, ...]:
    """The folders that are Python environments, with a slash behind; the root is none."""
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
    # an environment that git ignores already is not among the names
    names = (OUTPUT_FOLDER, *map(_pattern, environments(tree.names)))
    return tuple(line for line in names if line.strip("/") not in present)


def _pattern(folder: str) -> str:
    """A folder as a line of `.gitignore`: these characters would mean something there."""
    return "".join(f"\\{letter}" if letter in "\\*?[#! " else letter for letter in folder)


def scalar(text: str) -> str:
    """A text as YAML on one line, quoted only where it has to be."""
    written = yaml.safe_dump(text, default_flow_style=True, width=UNBROKEN, allow_unicode=True)
    line = written.removesuffix("\n").removesuffix("\n...")
    # a line end would be written over several lines, indented for another place
    return _quoted(text) if LINE_ENDS.intersection(line) else line


def _quoted(text: str) -> str:
    return yaml.safe_dump(text, default_style='"', width=UNBROKEN).removesuffix("\n")


FRAMEWORKS: Final = ("torch", "lightning", "pytorch_lightning", "transformers", "accelerate")
TRAINING_NAME: Final = re.compile(r"(?:main|(?:pre|run_|fine_?)?(?:train|tun)(?:e|ing)?(?:_\w+)?)")
# `main.py` may be anything; these say by their name alone that they train
TELLING_NAME: Final = re.compile(r"(?:pre|run_)?train(?:ing)?(?:_\w+)?|fine_?tun(?:e|ing)(?:_\w+)?")
NO_TRAINING: Final = re.compile(r"test_.*|.*_test|conftest|setup|__init__")
OPTION: Final = re.compile(r"--?[A-Za-z][A-Za-z0-9_-]{0,60}")
# calls of a script that is nothing but statements: `trainer.fit(model)`, `engine.run(loader)`
STARTS: Final = frozenset(("backward", "fit", "learn", "main", "run", "train"))
TEST_FOLDERS: Final = frozenset(("test", "tests", "site-packages"))
# looked at only where there is no training elsewhere
OUTSKIRTS: Final = frozenset(("docs", "doc", "example", "examples", "benchmark", "benchmarks"))


def find_trainings(sources: Mapping[str, str]) -> tuple[Training, ...]:
    """The scripts that look like a training, the likeliest first; `sources` maps paths to texts.

    A script is one that does something when it is started. It trains when it imports torch or a
    framework above it and calls `backward`, `fit` or a trainer, or has the name of a training.
    Where none does, a script counts that has the name alone.
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
    """Whether its text shows a training, and the training; nothing for what is none."""
    stem = PurePosixPath(path).stem
    if NO_TRAINING.fullmatch(stem) or TEST_FOLDERS & set(_parts(path)):
        return
    named = TRAINING_NAME.fullmatch(stem) is not None
    text = sources[path]
    # most files have none of these words, and parsing all of a large project takes a while
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
    """Options that `argparse` or click refuse to do without, such as `--config`."""
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


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _is_script(tree: ast.Module) -> bool:
    """Whether a module does something when it is started, beside defining names."""
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
    """What is executed at the start, within `with` and `try` too."""
    for node in body:
        yield node
        if isinstance(node, ast.With | ast.Try):
            yield from _statements(node.body)


def _sign(tree: ast.Module) -> str:
    """What in a module trains, in words; the empty text when nothing does."""
    called = {_called(node) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for name in ("backward", "manual_backward", "fit"):
        if name in called:
            return f"calls {name}()"
    trainer = next((name for name in sorted(called) if name.endswith("Trainer")), "")
    return f"makes a {trainer}" if trainer else ""


def _called(node: ast.AST) -> str:
    """The last name of what a call calls, such as `backward` of `loss.backward()`."""
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _packages_above(path: str, tree: ast.Module, sources: Mapping[str, str]) -> int:
    """How many folders above a script are packages that its relative imports need; 0 without."""
    levels = (node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    parts = _parts(path)
    # `from ..data import x` needs two packages above the script; one that imports its own package
    # by name, as a console script's module does, needs that one
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
    # the outermost package: others of its modules are imported by its name
    while above and f"{'/'.join(parts[:above])}/__init__.py" in sources:
        above -= 1
    return len(parts) - 1 - above


def _training(path: str, packages: int, why: str) -> Training:
    """The command that starts a script; one with relative imports starts as a module."""
    if not packages:
        return Training(command=shlex.join(("python", path)), script=path, why=why)
    parts = _parts(path)
    above = len(parts) - 1 - packages
    module = ".".join((*parts[above:-1], PurePosixPath(path).stem))
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
    """A file that names the action, with the place that it has for this project."""
    return text.replace(ACTION, action)


def workflow_path(gate_id: str) -> str:
    """The file of a gate's workflow."""
    return f".github/workflows/{artifact_name(gate_id)}.yml"


def workflow_text(config: str, gate_id: str) -> str:
    """The workflow of a gate; one of several has a name, check, artifact and folder of its own."""
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
    """The file of a gate's nightly workflow."""
    return f".github/workflows/{artifact_name(gate_id)}-nightly.yml"


def nightly_text(config: str, gate_id: str) -> str:
    """The same gate every night: no pull request, so no comment, and a check of another name."""
    name, check, text = artifact_name(gate_id), check_name(gate_id), workflow_text(config, gate_id)
    changes = (
        (f"name: {name}\non:", f"name: {name}-nightly\non:"),
        (_EVENTS, _EVERY_NIGHT),
        (_CONCURRENCY, ""),
        (f"  {CHECK}:\n", "  nightly:\n"),
        (f"    name: {check}\n", f"    name: {check.replace(CHECK, 'nightly', 1)}\n"),
        ("      pull-requests: write        # the comment\n", ""),
        # the step that tells a comment where the page is
        (text[text.rindex("      - uses:") :], ""),
        (f"          name: {name}\n", f"          name: {name}-nightly\n"),
    )
    for old, new in changes:
        text = text.replace(old, new)
    return text
