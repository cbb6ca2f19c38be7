"""A file that the training looked for and that no commit holds: the commonest first failure.

The gate trains a clean checkout, so what git ignores, and what was never added, is not there.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from pathlib import Path

from gate.errors import RunError
from gate.records.runs import Snapshot

MISSING = re.compile(r"No such file or directory: '([^'\n]{1,300})'")
NOT_IN_A_COMMIT = (
    "The gate trains what the commit holds; ignored and untracked files are not there."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class NotCommitted:
    """What lies in the work tree and in no commit; a folder stands for all in it, with a slash."""

    ignored: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()


def with_missing_file(
    fault: RunError, tree: Path, snapshot: Snapshot, left_out: NotCommitted
) -> RunError:
    """The failure of a run, with what became of the file that it did not find, if that was it.

    `tree` is where the run's copy of the commit lay.
    """
    # the last one ended the run; those before it were looked for and done without
    found = [match[1] for line in fault.details for match in MISSING.finditer(line)]
    path = _inside(found[-1], tree, snapshot.workdir) if found else None
    if path is None:
        return fault
    return RunError(fault.message, hint=_hint(path, left_out), details=fault.details)


def _inside(path: str, tree: Path, workdir: str) -> str | None:
    """The path as the repository sees it, or None when it lies elsewhere."""
    if path.startswith("/"):
        inside = path.removeprefix(f"{tree}/")
        return None if inside == path else posixpath.normpath(inside)
    joined = posixpath.normpath(posixpath.join(workdir, path))
    return None if joined.startswith("..") else joined


def _hint(path: str, left_out: NotCommitted) -> str:
    if _among(path, left_out.ignored):
        return (
            f"{path} is ignored by git; the gate trains what the commit holds. Commit a small "
            "sample (git add -f), or read it from an absolute path that every account may read."
        )
    if _among(path, left_out.untracked):
        return f"{path} is in no commit yet; the gate trains what the commit holds. git add it."
    return f"{path} is not in the commit. {NOT_IN_A_COMMIT}"


def _among(path: str, names: tuple[str, ...]) -> bool:
    return any(path.startswith(name) if name.endswith("/") else path == name for name in names)
