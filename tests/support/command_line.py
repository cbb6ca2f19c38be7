"""Helpers for tests of commands: their result, and work that is done once per test run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from baseline_cases import FOLDER
from played_training import Project
from scenes import baseline_of, scene


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The exit code and output of a command."""

    code: int
    out: str
    err: str


Run = Callable[..., Ended]


def record(project: Project, run: Run, *words: str) -> None:
    """Run `baseline record`, once per test run and commit; nothing is committed."""

    def recorded(folder: Path) -> None:
        ended = run("baseline", "record", "-q", *words)
        assert ended.code == 0, ended.err
        shutil.copytree(project.path / FOLDER, folder, dirs_exist_ok=True)
        shutil.rmtree(project.path / FOLDER.split("/")[0])

    if not baseline_of(project, "", "-".join(("commanded", *words)), recorded):
        assert run("baseline", "record", "-q", *words).code == 0


def played_once(name: str, project: Project, make: Callable[[], object]) -> None:
    """Run `make` on a project once per test run, and copy the result for all other tests.

    `make` may only change the folder that contains the project.
    """
    place = project.path.parent
    done = False

    def made(folder: Path) -> None:
        nonlocal done
        make()
        shutil.copytree(place, folder, symlinks=True, dirs_exist_ok=True)
        done = True

    held = scene(name, made)
    if not done:
        # Keep the folder itself, because it is the test's current folder. Remove its content first,
        # because git's object files are read-only and cannot be overwritten.
        for path in project.path.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(held, place, symlinks=True, dirs_exist_ok=True)
