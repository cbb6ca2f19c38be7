"""Reads files and scripts of an audited folder within bounds; runs none of them."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Final

from gate.audit.items import LineKind, ScriptLine
from gate.audit.scripts import Script
from gate.errors import GateError, StorageError
from gate.pipelines.scaffold import find_trainings
from gate.settings.gate_settings import GateSettings
from gate.system.files.port import Files
from gate.system.git.repository import Git
from gate.text.untrusted_text import safe_line
from gate.training.missing_files import PREPARER

MAX_NAMES: Final = 20_000
MAX_DEPTH: Final = 12
MAX_ALL_BYTES: Final = 16 * 1024 * 1024
# folders of installed packages, or of a tool's own data
SKIPPED: Final = frozenset(("node_modules", "__pycache__", "site-packages"))
ENVIRONMENT_MARK: Final = "pyvenv.cfg"


@dataclass(kw_only=True, slots=True)
class Look:
    """One look at a folder; all reads share one budget of `left` bytes."""

    top: Path
    files: Files
    left: int = MAX_ALL_BYTES
    names: list[str] = field(default_factory=list)
    incomplete: str = ""

    def read(self, name: str, limit: int) -> bytes | None:
        """Return the content of a regular file below the folder; None for anything else.

        A file beyond the limit or the rest of the budget counts as unreadable.
        """
        # untrusted settings may name any path
        if not is_below(name):
            return None
        with suppress(StorageError):
            self.files.refuse_links(self.top / name, below=self.top)
            data = self.files.read_bytes(self.top / name, max_bytes=min(limit, self.left))
            self.left -= len(data)
            return data
        return None


def is_below(name: str) -> bool:
    """Decide whether a relative path stays in its folder."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def list_files(look: Look, git: Git | None) -> tuple[str, ...]:
    """Fill in the names of the files; return the changed ones, if git can list them."""
    if git is not None:
        with suppress(GateError):
            names = git.visible_files()
            look.names = list(names[:MAX_NAMES])
            if len(names) > MAX_NAMES:
                look.incomplete = f"Of {len(names):,} files the first {MAX_NAMES:,} were looked at."
            return git.changed_files()
    look.names = sorted(_walked(look))
    return ()


def _walked(look: Look) -> Iterator[str]:
    """Yield the files below a folder outside git, the shallowest first."""
    waiting = deque([("", 0)])
    seen = 0
    while waiting:
        folder, depth = waiting.popleft()
        try:
            names = look.files.list_names(look.top / folder, max_names=MAX_NAMES)
        except StorageError:
            look.incomplete = "A folder could not be listed, or holds too many files."
            continue
        # an environment contains packages, not scripts of the project
        if folder and ENVIRONMENT_MARK in names:
            continue
        for name in names:
            # of the files of git and GitHub only .github matters, for its workflows
            if name.startswith(".git") and name != ".github":
                continue
            seen += 1
            if seen > MAX_NAMES or depth > MAX_DEPTH:
                look.incomplete = (
                    f"More than {MAX_NAMES:,} files, or more than {MAX_DEPTH} folders deep: the "
                    "rest was not looked at."
                )
                break
            path = f"{folder}/{name}" if folder else name
            if look.files.is_folder(look.top / path):
                if name not in SKIPPED:
                    waiting.append((path, depth + 1))
            else:
                yield path


def with_folders(names: list[str]) -> Iterator[str]:
    """Yield each file and each folder above it."""
    for name in names:
        yield name
        yield from (parent.as_posix() for parent in PurePosixPath(name).parents)


MAX_SCRIPT_BYTES: Final = 256 * 1024
MAX_SCRIPTS: Final = 500
# the budget of all scripts together, because parsing takes time
MAX_SCRIPTS_BYTES: Final = 2 * 1024 * 1024
MAX_LINES: Final = 2000
TESTS: Final = frozenset(("test", "tests", "docs", "doc"))


class AuditedScripts:
    """The scripts of the training with their imports, or all scripts if no training is known."""

    def __init__(
        self, look: Look, here: str, settings: GateSettings | None, settings_place: str
    ) -> None:
        self._look = look
        self._texts: dict[str, str] = {}
        self._lost: set[str] = set()
        self._left = MAX_SCRIPTS_BYTES
        self.read: dict[str, Script] = {}
        self.missing = ""
        self._preparers: set[str] = set()
        below = f"{here}/" if here else ""
        self._files = frozenset(
            name
            for name in look.names
            if name.endswith(".py") and name.isprintable() and name.startswith(below)
        )
        self.training, begin = self._begin(settings, settings_place)
        self._follow(begin)
        modules = {name for script in self.read.values() for name in script.modules}
        self.modules = frozenset(modules)
        self._read_preparers()
        broken = {name for name, script in self.read.items() if not script.readable}
        self.unreadable = tuple(map(safe_line, sorted(broken | self._lost)))
        lines = (
            line
            for name in sorted(self.read)
            for line in self.read[name].lines
            # a script that makes the data does not train, so of its lines only downloads matter
            if name not in self._preparers or line.kind is LineKind.DOWNLOADS
        )
        self.lines: tuple[ScriptLine, ...] = tuple(sorted(lines))[:MAX_LINES]

    def _begin(self, settings: GateSettings | None, place: str) -> tuple[str, list[str]]:
        """Return the training's command and the files that it starts."""
        if settings is not None:
            folder = PurePosixPath(place, settings.train.workdir)
            words = [word for word in settings.train.command if word.endswith(".py")]
            words += _modules(settings.train.command)
            named = [PurePosixPath(folder, word).as_posix() for word in words]
            known = [name for name in named if name in self._look.names]
            # a module may be an installed package, but a script named by its path must be in the
            # commit
            scripts = [word for word in words if word in settings.train.command]
            self.missing = safe_line(scripts[0]) if scripts and not known else ""
            self._files |= frozenset(known)
            command = safe_line(shlex.join(settings.train.command))
            return command, known or self._all()
        trainings = find_trainings({name: self._text(name) for name in self._all()})
        if not trainings:
            return "", self._all()
        return safe_line(trainings[0].command), [training.script for training in trainings]

    def _all(self) -> list[str]:
        """Return all scripts outside tests, the shallowest first: trainings are rarely deep."""
        outside = (name for name in self._files if not TESTS & set(PurePosixPath(name).parts))
        return sorted(outside, key=lambda name: (name.count("/"), name))[:MAX_SCRIPTS]

    def _follow(self, begin: list[str]) -> None:
        waiting = list(begin)
        # imports may be cyclic, so scripts that were read are not read again
        while waiting and len(self.read) < MAX_SCRIPTS:
            name = waiting.pop(0)
            if name not in self.read:
                self.read[name] = Script(name, self._text(name), self._files)
                waiting += sorted(self.read[name].imports)

    def _read_preparers(self) -> None:
        """Read scripts that make the data, for their downloads; no training imports them."""
        for name in self._all():
            if name not in self.read and PREPARER.fullmatch(PurePosixPath(name).name):
                self._preparers.add(name)
                self.read[name] = Script(name, self._text(name), self._files)

    def _text(self, name: str) -> str:
        if name not in self._texts:
            data = self._look.read(name, min(MAX_SCRIPT_BYTES, self._left))
            self._left -= len(data or b"")
            if data is None:
                self._lost.add(name)
            self._texts[name] = "" if data is None else data.decode("utf-8", "replace")
        return self._texts[name]


def _modules(command: tuple[str, ...]) -> list[str]:
    """Return the files that `python -m a.b` may start."""
    names = [after for word, after in pairwise(command) if word == "-m"]
    paths = [name.replace(".", "/") for name in names]
    return [file for path in paths for file in (f"{path}.py", f"{path}/__main__.py")]
