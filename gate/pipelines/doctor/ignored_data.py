"""Data that a training reads and git ignores: seen in a work tree before the first run fails.

Scripts are read as syntax, as for an audit; nothing is run. Only for a person's own work tree: on a
runner the files are a pull request's, and no gate parses them in its own process (T5).
"""

from __future__ import annotations

import posixpath
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from gate.errors import StorageError
from gate.isolation.confined_look import read_apart
from gate.pipelines.audited_folder import AuditedScripts
from gate.pipelines.offline_audited_folder import Look, list_files
from gate.settings.gate_settings import GateSettings
from gate.system.files.port import Files
from gate.system.git.port import Git
from gate.text.documents import RecordForm
from gate.training.missing_files import Project, ways_to_have

MAX_IGNORED: Final = 2000
# what tools keep beside the code, and no training reads
CACHES: Final = frozenset(("__pycache__", "venv", "env", "node_modules", "build", "dist", "wandb"))


@dataclass(frozen=True, kw_only=True, slots=True)
class IgnoredRead:
    """A file that a line of a script reads and git ignores, and what would let a run find it."""

    path: str
    place: str
    ways: str


FOUND: Final[RecordForm[IgnoredRead | None]] = RecordForm(IgnoredRead | None)


def ignored_read(
    top: Path, folder: str, settings: GateSettings, files: Files, git: Git
) -> IgnoredRead | None:
    """The first such file; `folder` is that of the settings. None where none is seen."""
    look = Look(top=top, files=files)
    list_files(look, git)
    ignored = tuple(filter(_may_be_data, git.ignored()[:MAX_IGNORED]))
    # git is asked here; there the scripts are parsed, which may be anybody's
    return read_apart(
        FOUND, lambda: _first(look, folder, settings, ignored), what="the syntax of the scripts"
    )


def _first(
    look: Look, folder: str, settings: GateSettings, ignored: tuple[str, ...]
) -> IgnoredRead | None:
    top, files = look.top, look.files
    scripts = AuditedScripts(look, "", settings, folder)
    project = Project(top=top, folder=folder or ".", files=files)
    had = _had(settings, folder)
    for name in sorted(scripts.read):
        for line, text in scripts.read[name].read_texts:
            path = _ignored_path(text, ignored, top, files)
            if path and not any(_is_in(path, place) for place in had):
                ways = ways_to_have(path, ignored, top, project)
                return IgnoredRead(path=path, place=f"{name}:{line}", ways=ways)
    return None


def _may_be_data(entry: str) -> bool:
    parts = PurePosixPath(entry).parts
    return not any(part.startswith(".") or part in CACHES for part in parts)


def _had(settings: GateSettings, folder: str) -> tuple[str, ...]:
    """Places of the repository that a run has, or writes, although no commit holds them."""
    made = settings.preprocess.out if settings.preprocess is not None else None
    train = settings.train
    own = (made, *(source.at for source in settings.data))
    written = (train.checkpoint, train.metrics.file)
    places = [posixpath.join(folder, place) for place in own if place]
    places += [posixpath.join(folder, train.workdir, place) for place in written if place]
    return tuple(map(posixpath.normpath, places))


def _is_in(path: str, place: str) -> bool:
    return PurePosixPath(path).is_relative_to(place)


def _ignored_path(text: str, ignored: tuple[str, ...], top: Path, files: Files) -> str:
    """The ignored file that a text in a script names, whole or by its end; else empty."""
    path = PurePosixPath(text)
    if not path.suffix or path.is_absolute() or ".." in path.parts or not text.isprintable():
        return ""
    for entry in ignored:
        if not entry.endswith("/"):
            if f"/{entry}".endswith(f"/{path}"):
                return entry
            continue
        for inside in (path.as_posix(), f"{entry}{path}"):
            # no name of a file, such as one that is too long
            with suppress(StorageError):
                if inside.startswith(entry) and files.exists(top / inside):
                    return inside
    return ""
