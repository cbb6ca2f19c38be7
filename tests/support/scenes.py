"""What many tests look at is made once a test run, by the program itself, for all workers.

A scene is a folder that its maker filled. The first test that asks for it makes it, others wait for
that one (a lock on a file beside it) and copy from it what they change. Nothing of it is kept for
the next run or committed: a scene is always what this code does.

What a commit's baseline is depends on nothing but the commit (`Repository` dates all of them alike)
and the variables, so each is recorded once: `baseline_of`.
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
# settings whose baseline depends on more than the commit: what lies outside of the repository
OUTSIDE = ("data:", "fetch:", "env:", "image:", "cache:", "preprocess:", "pass_env:", "cluster:")


def scene(name: str, make: Callable[[Path], object]) -> Path:
    """The folder that `make` fills, to be read and copied; where it raises, nothing is kept."""
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
    """A copy of a scene for one test, which may change it."""
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
