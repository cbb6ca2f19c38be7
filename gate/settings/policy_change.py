"""Files that decide over a change, and files that say what a training runs with."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from pydantic import Field

from gate.text.document import Document

MAX_SHOWN = 300


class PolicyChange(Document):
    """One field of one file: what the base commit has, which decides, and what was brought.

    Empty where there is nothing; both texts are the files' own and therefore untrusted.
    """

    file: str = Field(max_length=MAX_SHOWN)
    what: str = Field(max_length=MAX_SHOWN)
    before: str = Field(default="", max_length=MAX_SHOWN)
    after: str = Field(default="", max_length=MAX_SHOWN)


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
