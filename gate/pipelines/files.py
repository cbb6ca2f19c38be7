"""The files of a first gate call, as text: nothing here is written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final

import yaml

from gate.pipelines.records_scaffold import DEFAULT_BASELINE, Plan, Training, WorkTree
from gate.settings.gate_settings import FILE_NAME
from gate.system.gate_names import DEFAULT_GATE

GITIGNORE: Final = ".gitignore"
OUTPUT_FOLDER: Final = "repro-gate-out/"
# what `python -m venv` and its like leave at the root of an environment (PEP 405)
ENVIRONMENT_MARK: Final = "pyvenv.cfg"
UNBROKEN: Final = 1_000_000
# of YAML 1.1, which PyYAML reads
LINE_ENDS: Final = frozenset("\n\r\x85\u2028\u2029")


def settings_text(
    training: Training, max_steps: int, *, gate_id: str = DEFAULT_GATE, baseline: str = ""
) -> str:
    """`repro-gate.yml` for a training: the keys that have no default, each explained.

    One of several gates gets its `gate_id`, and a folder for its `baseline` where another settings
    file of its folder has the usual one.
    """
    workdir = "" if training.workdir == "." else f"  workdir: {scalar(training.workdir)}\n"
    return (
        "version: 1\n"
        "train:\n"
        f"  command: {scalar(training.command)}\n"
        f"{workdir}"
        "  # The script is stopped cleanly after this many optimizer steps.\n"
        f"  max_steps: {max_steps}\n"
        f"{_of_its_own('baseline', 'path', baseline)}"
        f"{_of_its_own('report', 'gate_id', gate_id if gate_id != DEFAULT_GATE else '')}"
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
    tree: WorkTree, wanted: Mapping[str, str], there: frozenset[str], training: Training | None
) -> Plan:
    """Which of the wanted files are new, which stay as they are, and what git shall ignore.

    `there` names what has the path of a wanted file, whatever it is.
    """
    return Plan(
        training=training,
        new={path: text for path, text in wanted.items() if path not in there},
        kept=tuple(path for path in wanted if path in there),
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
    wanted = (OUTPUT_FOLDER, *map(_pattern, environments(tree.names)))
    return tuple(line for line in wanted if line.strip("/") not in present)


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
