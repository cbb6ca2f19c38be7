"""A file that the training looked for and that no commit holds: the commonest first failure.

The gate trains a clean checkout, so what git ignores, and what was never added, is not there.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gate.data.declaring import entry_at, names_entry
from gate.errors import RunError, StorageError
from gate.system.files.port import Files
from gate.training.runs import Snapshot

# as Python, pyarrow, HDF5, torch and libraries with words of their own tell it
MISSING = re.compile(
    r"No such file or directory: '([^'\n]{1,300})'"
    r"|Failed to open local file '([^'\n]{1,300})'.{0,40}No such file or directory"
    r"|name = '([^'\n]{1,300})', errno = 2\b"
    r"|unable to open file <([^>\n]{1,300})>.{0,40}No such file or directory"
    r"|FileNotFoundError: (?:[A-Za-z ]{1,40}:? )?'?(/[^'\n]{1,300}?)'?(?: not found\.?)?\Z"
)
PREPARER: Final = re.compile(
    r"(?:prepare|preprocess|pre_process|download|fetch|get_data|make_data|build_data)"
    r"[A-Za-z0-9_-]{0,60}\.(?:py|sh)"
)
SCRIPT_FOLDERS: Final = ("scripts", "tools", "data")
MAX_FOLDERS: Final = 20
MAX_NAMES: Final = 2000
NOT_IN_A_COMMIT = (
    "The gate trains what the commit holds; ignored and untracked files are not there."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class NotCommitted:
    """What lies in the work tree and in no commit; a folder stands for all in it, with a slash."""

    ignored: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """Where the settings lie: the root of the clone, and their folder in it."""

    top: Path
    folder: str
    files: Files

    def seen_from(self, path: str) -> str:
        """A path of the repository as the settings would name it."""
        return posixpath.relpath(path, self.folder)


def with_missing_file(
    fault: RunError, tree: Path, snapshot: Snapshot, left_out: NotCommitted, project: Project
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
        hint=_hint(path, left_out, snapshot.tree, project),
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


def _hint(path: str, left_out: NotCommitted, tree: Path, project: Project) -> str:
    if _among(path, left_out.ignored):
        return (
            f"{path} is ignored by git; the gate trains what the commit holds. "
            f"{ways_to_have(path, left_out.ignored, tree, project)}"
        )
    if _among(path, left_out.untracked):
        return f"{path} is in no commit yet; the gate trains what the commit holds. git add it."
    way = _made_by(path, (), tree, project)
    return f"{path} is not in the commit. {way or NOT_IN_A_COMMIT}"


def ways_to_have(path: str, ignored: tuple[str, ...], tree: Path, project: Project) -> str:
    """What works for an ignored file, with every path filled in.

    A script of the commit, whose files are at `tree`, makes it; or it is declared, or committed.
    """
    sample = f"commit a small sample: `git add -f {shlex.quote(project.seen_from(path))}`"
    made = _made_by(path, ignored, tree, project)
    if made:
        return f"{made} Or {sample}."
    place = _ignored_with(path, ignored)
    entry = entry_at(str(project.top / place), project.seen_from(place))
    return f"Declare it where the script looks for it: `{entry}`. Or {sample}."


def _made_by(path: str, ignored: tuple[str, ...], tree: Path, project: Project) -> str:
    """The settings that make it by a script of the commit; empty where none looks like it."""
    script = _preparer(path, tree, project.files)
    # preprocess.out lies below the settings
    out = project.seen_from(_ignored_with(path, ignored))
    if not script or out.startswith(".."):
        return ""
    program = "python" if script.endswith(".py") else "bash"
    command = shlex.join((program, project.seen_from(script)))
    lines = f"preprocess: {{command: {json.dumps(command)}, out: {json.dumps(out)}}}"
    return f"Let the gate make it: `{lines}`."


def _ignored_with(path: str, ignored: tuple[str, ...]) -> str:
    """The ignored folder around a file, the folder of several ignored files, or the file."""
    whole = next((name for name in ignored if name.endswith("/") and path.startswith(name)), "")
    folder = posixpath.dirname(path)
    beside = [name for name in ignored if folder and posixpath.dirname(name) == folder]
    if whole:
        return whole.rstrip("/")
    return folder if len(beside) > 1 else path


def _preparer(path: str, tree: Path, files: Files) -> str:
    """A script of the commit that says by its name that it makes data: the nearest one."""
    folder = posixpath.dirname(path)
    folders = [folder]
    while folder:
        folder = posixpath.dirname(folder)
        folders.append(folder)
    for place in (*folders[:MAX_FOLDERS], *SCRIPT_FOLDERS):
        where = tree / place
        try:
            # no link is followed: the commit may have it point anywhere
            files.refuse_links(where, below=tree)
            names = files.list_names(where, max_names=MAX_NAMES) if files.is_folder(where) else ()
        except StorageError:
            continue
        found = next((name for name in names if PREPARER.fullmatch(name)), "")
        if found:
            return posixpath.join(place, found)
    return ""


def _among(path: str, names: tuple[str, ...]) -> bool:
    return any(path.startswith(name) if name.endswith("/") else path == name for name in names)
