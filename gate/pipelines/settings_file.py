"""The settings file of a call: find it, read its bytes, and say what to do if there is none."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from gate.errors import RepositoryError, SettingsError, StorageError
from gate.settings.gate_settings import FILE_NAME
from gate.system.files.port import Files
from gate.system.git.repository import Git, GitRepository
from gate.text.untrusted_text import safe_line

MAX_SETTINGS_BYTES: Final = 256 * 1024
OTHER_SUFFIX: Final = "repro-gate.yaml"
MOST_NAMED: Final = 5


def find_config(config: str, start: Path, top: Path) -> Path:
    """Return the given settings file, else the nearest one from `start` up to the root `top`.

    Without one, raises `SettingsError` that says what has its place, or which other settings files
    the repository has.
    """
    if config:
        return _given(config, start)
    nearest = _nearest(start, top)
    if nearest is not None:
        return nearest
    for folder in _upwards(start, top):
        _refuse_look_alike(folder)
    raise SettingsError(
        f"no {FILE_NAME} in this folder or in one above it, up to the repository's root",
        hint=_others(start, top)
        or f"Run `repro-gate init`, which writes one, or name yours: --config FOLDER/{FILE_NAME}.",
    )


def nearest_settings(start: Path) -> Path | None:
    """Return the nearest settings file from a folder up to the root of its repository, or None."""
    # the folder's own first, by its name as the caller gave it: messages show paths below it
    if (start / FILE_NAME).is_file():
        return start / FILE_NAME
    try:
        top = GitRepository(start).top_level()
    except RepositoryError:
        top = start
    return _nearest(start, top)


def settings_bytes(path: Path, files: Files) -> bytes:
    """Return the content of a settings file; raises `SettingsError` if it cannot be read."""
    try:
        return files.read_bytes(path, max_bytes=MAX_SETTINGS_BYTES)
    except StorageError as error:
        raise SettingsError(error.message, hint=error.hint, details=error.details) from error


def _nearest(start: Path, top: Path) -> Path | None:
    paths = (folder / FILE_NAME for folder in _upwards(start, top))
    return next((path for path in paths if path.is_file()), None)


def _upwards(start: Path, top: Path) -> Iterator[Path]:
    """Yield the folders from `start` up to the root, and the root even if it is not above."""
    here, root = start.resolve(), top.resolve()
    if not here.is_relative_to(root):
        yield from (start, top)
        return
    # built from the caller's own name of the root, which may be a link: messages show that name
    below = here.relative_to(root)
    for folder in (below, *below.parents):
        yield top / folder


def _given(config: str, start: Path) -> Path:
    given = start / config
    if given.is_file():
        return given
    if given.is_dir():
        inside = Path(config) / FILE_NAME
        raise SettingsError(
            f"{config} is a folder",
            hint=f"Name the file in it: --config {shlex.quote(str(inside))}"
            if (start / inside).is_file()
            else "Name a file; `repro-gate init` writes a minimal one at the root.",
        )
    raise SettingsError(
        f"{config}: no such file",
        hint="Correct the path; `repro-gate init` writes a minimal file at the root.",
    )


def _refuse_look_alike(folder: Path) -> None:
    """Refuse a link or folder with the file's name, and a file with a similar name."""
    path = folder / FILE_NAME
    if path.is_symlink():
        raise SettingsError(
            f"{FILE_NAME} is a link to {safe_line(str(path.readlink()))}, which is not there",
            hint="Put the settings file itself there.",
        )
    if path.exists():
        raise SettingsError(
            f"{FILE_NAME} is a folder", hint="Rename it: the settings file needs this name."
        )
    if (folder / OTHER_SUFFIX).is_file():
        raise SettingsError(
            f"no {FILE_NAME} here, but {OTHER_SUFFIX}",
            hint=f"Rename it: git mv {OTHER_SUFFIX} {FILE_NAME}. Or name it: "
            f"--config {OTHER_SUFFIX}.",
        )


def settings_in(git: Git, top: Path) -> list[str]:
    """Return the first settings files of a work tree, by name, `MOST_NAMED` of them at most."""
    names = list[str]()
    with suppress(RepositoryError):
        names = [
            name
            for name in git.visible_files()
            if Path(name).name == FILE_NAME and (top / name).is_file()
        ]
    return sorted(names)[:MOST_NAMED]


def _others(start: Path, top: Path) -> str:
    """Return a hint with the settings files elsewhere in the repository; empty without any."""
    names = settings_in(GitRepository(top), top)
    if not names:
        return ""
    back = Path(os.path.relpath(top.resolve(), start.resolve()))
    shown = [shlex.quote(safe_line(str(back / name))) for name in names]
    return f"This repository has others. Name one: --config {', or '.join(shown)}"
