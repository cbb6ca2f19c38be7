"""Which files of a repository say what a training runs with: packages, images, what CI installs."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

# what pip, uv, Poetry, PDM, Pipenv, conda, Docker and the workflows of GitHub read; by file name
NAMES: Final = (
    "requirements*.txt",
    "requirements*.in",
    "constraints*.txt",
    "pyproject.toml",
    "setup.py",
    "setup.cfg",
    "*.lock",
    "pylock*.toml",
    "Pipfile",
    "environment*.yml",
    "environment*.yaml",
    "conda*.yml",
    "conda*.yaml",
    "conda*.txt",
    "Dockerfile*",
    "*.dockerfile",
)
LISTS: Final = "requirements"
GITHUB: Final = ((".github", "workflows"), (".github", "actions"))


def dependency_files(changed: Iterable[str]) -> tuple[str, ...]:
    """Those of the changed paths that may bring another environment, sorted."""
    return tuple(sorted(path for path in changed if _declares(path)))


def _declares(path: str) -> bool:
    *folders, name = path.split("/")
    if LISTS in folders or tuple(folders[:2]) in GITHUB:
        return True
    return any(fnmatchcase(name, pattern) for pattern in NAMES)
