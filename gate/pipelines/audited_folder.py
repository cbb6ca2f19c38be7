"""The scripts of a training that is audited, and what they import: read as syntax, never run."""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Final

from gate.audit.items import LineKind, ScriptLine
from gate.audit.scripts import Script
from gate.pipelines.offline_audited_folder import Look
from gate.pipelines.scaffold import find_trainings
from gate.settings.gate_settings import GateSettings
from gate.text.untrusted_text import safe_line
from gate.training.missing_files import PREPARER

MAX_SCRIPT_BYTES: Final = 256 * 1024
MAX_SCRIPTS: Final = 500
# of all together: reading syntax takes its time
MAX_SCRIPTS_BYTES: Final = 2 * 1024 * 1024
MAX_LINES: Final = 2000
TESTS: Final = frozenset(("test", "tests", "docs", "doc"))


class AuditedScripts:
    """The scripts of the training and what they import, or all where no training is known."""

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
            # of a script that makes the data, seeds and flags are not those of the training
            if name not in self._preparers or line.kind is LineKind.DOWNLOADS
        )
        self.lines: tuple[ScriptLine, ...] = tuple(sorted(lines))[:MAX_LINES]

    def _begin(self, settings: GateSettings | None, place: str) -> tuple[str, list[str]]:
        """The command of the training, and the files that it starts."""
        if settings is not None:
            folder = PurePosixPath(place, settings.train.workdir)
            words = [word for word in settings.train.command if word.endswith(".py")]
            words += _modules(settings.train.command)
            named = [PurePosixPath(folder, word).as_posix() for word in words]
            known = [name for name in named if name in self._look.names]
            # a module may be installed; a script that is named by its path is of the commit
            scripts = [word for word in words if word in settings.train.command]
            self.missing = safe_line(scripts[0]) if scripts and not known else ""
            self._files |= frozenset(known)
            command = safe_line(shlex.join(settings.train.command))
            return command, known or self._all()
        found = find_trainings({name: self._text(name) for name in self._all()})
        if not found:
            return "", self._all()
        return safe_line(found[0].command), [training.script for training in found]

    def _all(self) -> list[str]:
        """The shallowest first: a training is not at the bottom, nor among the tests."""
        outside = (name for name in self._files if not TESTS & set(PurePosixPath(name).parts))
        return sorted(outside, key=lambda name: (name.count("/"), name))[:MAX_SCRIPTS]

    def _follow(self, begin: list[str]) -> None:
        waiting = list(begin)
        while waiting and len(self.read) < MAX_SCRIPTS:
            name = waiting.pop(0)
            if name not in self.read:
                self.read[name] = Script(name, self._text(name), self._files)
                waiting += sorted(self.read[name].imports)

    def _read_preparers(self) -> None:
        """Scripts that make the data: no training imports them, and what they download is read."""
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
    """The files that `python -m a.b` may start."""
    names = [after for word, after in pairwise(command) if word == "-m"]
    paths = [name.replace(".", "/") for name in names]
    return [file for path in paths for file in (f"{path}.py", f"{path}/__main__.py")]
