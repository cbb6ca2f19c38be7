"""What `init` saw in a work tree, and what it does about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gate.settings.gate_settings import FILE_NAME, BaselineSettings

DEFAULT_BASELINE: Final = BaselineSettings().path


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkTree:
    """What lies in a work tree, ignored files left out.

    `names` are the paths of all files from its root, `sources` the texts of the Python files among
    them that could be read, `gitignore` the text of the file of that name, empty without one.
    """

    names: tuple[str, ...]
    sources: Mapping[str, str]
    gitignore: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """A training: its command, where that starts, and the script with what tells a training.

    `workdir` is relative to the work tree's root; `script` is empty for a command that was given.
    """

    command: str
    workdir: str = "."
    script: str = ""
    why: str = ""


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
