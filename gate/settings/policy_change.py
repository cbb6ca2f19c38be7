"""The record of a change in a policy file, and the files that define a training's environment."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from pydantic import Field

from gate.text.document import Document

MAX_SHOWN = 300


class PolicyChange(Document):
    """One field of a policy file: its value in the base commit, which decides, and in head.

    A missing value is empty. Both texts come from the files and are untrusted.
    """

    file: str = Field(max_length=MAX_SHOWN)
    what: str = Field(max_length=MAX_SHOWN)
    before: str = Field(default="", max_length=MAX_SHOWN)
    after: str = Field(default="", max_length=MAX_SHOWN)


# file names that pip, uv, Poetry, PDM, Pipenv, conda, Docker and GitHub workflows read
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
    """Return the changed paths that may install another environment, sorted."""
    return tuple(sorted(path for path in changed if _declares(path)))


def _declares(path: str) -> bool:
    *folders, name = path.split("/")
    if LISTS in folders or tuple(folders[:2]) in GITHUB:
        return True
    return any(fnmatchcase(name, pattern) for pattern in NAMES)
