"""A file that the training looked for and that no commit holds: the commonest first failure.

The gate trains a clean checkout, so what git ignores, and what was never added, is not there.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from pathlib import Path

from gate.errors import RunError
from gate.records.observed.data.declaring import names_entry
from gate.records.runs import Snapshot

# as Python, pyarrow, HDF5, torch and libraries with words of their own tell it
MISSING = re.compile(
    r"No such file or directory: '([^'\n]{1,300})'"
    r"|Failed to open local file '([^'\n]{1,300})'.{0,40}No such file or directory"
    r"|name = '([^'\n]{1,300})', errno = 2\b"
    r"|unable to open file <([^>\n]{1,300})>.{0,40}No such file or directory"
    r"|FileNotFoundError: (?:[A-Za-z ]{1,40}:? )?'?(/[^'\n]{1,300}?)'?(?: not found\.?)?\Z"
)
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
    missing = None if names_entry(fault.hint) else missing_path(fault.details)
    path = None if missing is None else inside_tree(missing, tree, snapshot.workdir)
    if path is None:
        return fault
    return RunError(
        fault.message,
        hint=_hint(path, left_out),
        details=fault.details,
        file=fault.file,
        line=fault.line,
    )


def missing_path(lines: tuple[str, ...]) -> str | None:
    """The last file that these lines of a training's output say is not there."""
    found = [match for line in lines for match in MISSING.finditer(line)]
    # the last one ended the run; those before it were looked for and done without
    return next((part for part in found[-1].groups() if part), None) if found else None


def inside_tree(path: str, tree: Path, workdir: str) -> str | None:
    """The path as the repository sees it, or None when it lies elsewhere."""
    if path.startswith("/"):
        inside = path.removeprefix(f"{tree}/")
        joined = posixpath.normpath(inside)
        return None if inside == path or joined.startswith("..") else joined
    joined = posixpath.normpath(posixpath.join(workdir, path))
    return None if joined.startswith("..") else joined


def _hint(path: str, left_out: NotCommitted) -> str:
    if _among(path, left_out.ignored):
        return (
            f"{path} is ignored by git; the gate trains what the commit holds. Commit a small "
            "sample (git add -f), or declare it by its absolute path: `data: [{path: …}]`."
        )
    if _among(path, left_out.untracked):
        return f"{path} is in no commit yet; the gate trains what the commit holds. git add it."
    return f"{path} is not in the commit. {NOT_IN_A_COMMIT}"


def _among(path: str, names: tuple[str, ...]) -> bool:
    return any(path.startswith(name) if name.endswith("/") else path == name for name in names)
