"""Folders that many tests read, made once per test run by the program itself, for all workers.

A scene is a folder that its maker filled. The first test that asks for a scene makes it. Other
tests wait for that one (a lock on a file beside it) and copy what they change. No scene is kept for
the next test run or committed, so a scene always shows what the present code does.

A commit's baseline depends only on the commit (`Repository` gives all commits the same date) and on
the variables. So `baseline_of` records each baseline once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from baseline_cases import FOLDER
from git_workshop import Repository

# set by `tests/conftest.py` before the workers start
SCENES = "REPRO_GATE_TESTS_SCENES"
# words of settings with which a baseline also depends on something outside of the repository
OUTSIDE = ("data:", "fetch:", "env:", "image:", "cache:", "preprocess:", "pass_env:", "cluster:")


def scene(name: str, make: Callable[[Path], object]) -> Path:
    """Return the folder that `make` fills, only to be read or copied.

    Nothing is kept if `make` raises an exception.
    """
    root = Path(os.environ[SCENES])
    place, making = root / name, root / f"{name}.making"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir()
            make(making)
            making.rename(place)
    return place


def copied(name: str, make: Callable[[Path], object], target: Path) -> Path:
    """Return a copy of a scene, which the test may change."""
    shutil.copytree(scene(name, make), target, symlinks=True, dirs_exist_ok=True)
    return target


def baseline_of(
    project: Repository, config: str, way: str, record: Callable[[Path], object]
) -> bool:
    """Put the baseline of the project's commit into its folder, recorded once a test run.

    `record` writes the folder of entries into the folder given; `way` names how it does. False, and
    nothing is done, where the baseline may depend on more than the commit or add to another one,
    and outside of a test run, as in `make test-zoo`.
    """
    if SCENES not in os.environ:
        return False
    folder = project.path / Path(config).parent / FOLDER
    settings = (project.path / (config or "repro-gate.yml")).read_text("utf-8", "replace")
    if folder.exists() or project.git("status", "--porcelain"):
        return False
    if any(word in settings for word in OUTSIDE):
        return False
    variables = sorted(item for item in os.environ.items() if not item[0].startswith("PYTEST"))
    key = hashlib.sha256(repr((project.git("rev-parse", "HEAD"), config, variables)).encode())
    shutil.copytree(scene(f"{way}-{key.hexdigest()[:32]}", record), folder)
    return True
