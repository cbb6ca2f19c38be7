"""The files of a first gate call, as text: nothing here is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final

import yaml

from gate.records.scaffold import Plan, Training, WorkTree

GITIGNORE: Final = ".gitignore"
OUTPUT_FOLDER: Final = "repro-gate-out/"
# what `python -m venv` and its like leave at the root of an environment (PEP 405)
ENVIRONMENT_MARK: Final = "pyvenv.cfg"
UNBROKEN: Final = 1_000_000
# of YAML 1.1, which PyYAML reads
LINE_ENDS: Final = frozenset("\n\r\x85\u2028\u2029")


def settings_text(training: Training, max_steps: int) -> str:
    """`repro-gate.yml` for a training: the keys that have no default, each explained."""
    workdir = "" if training.workdir == "." else f"  workdir: {_scalar(training.workdir)}\n"
    return (
        "version: 1\n"
        "train:\n"
        f"  command: {_scalar(training.command)}\n"
        f"{workdir}"
        "  # The script is stopped cleanly after this many optimizer steps.\n"
        f"  max_steps: {max_steps}\n"
    )


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


def _scalar(text: str) -> str:
    """A text as YAML on one line, quoted only where it has to be."""
    written = yaml.safe_dump(text, default_flow_style=True, width=UNBROKEN, allow_unicode=True)
    line = written.removesuffix("\n").removesuffix("\n...")
    # a line end would be written over several lines, indented for another place
    return _quoted(text) if LINE_ENDS.intersection(line) else line


def _quoted(text: str) -> str:
    return yaml.safe_dump(text, default_style='"', width=UNBROKEN).removesuffix("\n")
