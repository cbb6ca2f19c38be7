"""Explains which file a failed training did not find, and the `data` entry that would declare it.

The gate trains a clean checkout, so files that git ignores, and files that were never added, are
missing there.

All paths here come from what the training printed, so they are untrusted. They are shown, and
outside the commit none of them is opened.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gate.data.declared import data_names, entries_for, entry_at, entry_of_pointer, names_entry
from gate.errors import RunError, StorageError
from gate.isolation.process_request import ProcessRequest
from gate.system.files.port import Files
from gate.text.untrusted_text import plain_text
from gate.training.runs import Snapshot

# the messages of Python, its start-up, pyarrow, HDF5, torch and libraries with their own words
MISSING = re.compile(
    r"No such file or directory: '([^'\n]{1,300})'"
    r"|can't open file '([^'\n]{1,300})': \[Errno 2\]"
    r"|Failed to open local file '([^'\n]{1,300})'.{0,40}No such file or directory"
    r"|name = '([^'\n]{1,300})', errno = 2\b"
    r"|unable to open file <([^>\n]{1,300})>.{0,40}No such file or directory"
    r"|FileNotFoundError: (?:[A-Za-z ]{1,40}:? )?'?(/[^'\n]{1,300}?)'?(?: not found\.?)?\Z"
)
PREPARER: Final = re.compile(
    r"(?:prepare|preprocess|pre_process|download|fetch|get_data|make_data|build_data)"
    r"[A-Za-z0-9_-]{0,60}\.(?:py|sh)"
)
PROGRAMS: Final = (".py", ".sh")
SCRIPT_FOLDERS: Final = ("scripts", "tools", "data")
MAX_FOLDERS: Final = 20
MAX_NAMES: Final = 2000
ONLY_COMMITTED = "The gate trains only committed files."


@dataclass(frozen=True, kw_only=True, slots=True)
class NotCommitted:
    """Files of the work tree that are in no commit; a folder, with a slash, means all in it."""

    ignored: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """The place of the settings: the root of the clone, and their folder in it."""

    top: Path
    folder: str
    files: Files

    def seen_from(self, path: str) -> str:
        """Return a path of the repository as the settings would write it."""
        return posixpath.relpath(path, self.folder)


def with_missing_file(
    fault: RunError, tree: Path, snapshot: Snapshot, left_out: NotCommitted, project: Project
) -> RunError:
    """Return the failure of a run, with a hint about the file that it did not find, if any.

    `tree` is where the run's copy of the commit was.
    """
    missing = None if names_entry(fault.hint) else missing_path(fault.details)
    path = None if missing is None else inside_tree(missing, tree, snapshot.workdir)
    if path is None:
        return fault
    return RunError(
        fault.message,
        hint=not_given(path, snapshot, project.files)
        or _hint(path, left_out, snapshot.tree, project),
        details=fault.details,
        file=fault.file,
        line=fault.line,
    )


def not_given(path: str, snapshot: Snapshot, files: Files) -> str:
    """Return the hint for a file that is in the commit and not in its runs; empty for any other."""
    if snapshot.part is None or not _is_there(snapshot.tree / path, files):
        return ""
    if _is_there(snapshot.part / path, files):
        return ""
    return f"{path} is in the commit, and train.files leaves it out. Add it there."


def _is_there(path: Path, files: Files) -> bool:
    try:
        return files.exists(path)
    except StorageError:
        # the text is no valid file name, for example too long
        return False


def missing_path(lines: tuple[str, ...]) -> str | None:
    """Return the last file that these lines of a training's output report as missing, or None."""
    matches = [match for line in lines for match in MISSING.finditer(line)]
    # the last one ended the run; the script managed without earlier ones
    return next((part for part in matches[-1].groups() if part), None) if matches else None


def inside_tree(path: str, tree: Path, workdir: str) -> str | None:
    """Return the path relative to the repository, or None if it is elsewhere."""
    if path.startswith("/"):
        inside = path.removeprefix(f"{tree}/")
        joined = posixpath.normpath(inside)
        return None if inside == path or joined.startswith("..") else joined
    joined = posixpath.normpath(posixpath.join(workdir, path))
    return None if joined.startswith("..") else joined


def _hint(path: str, left_out: NotCommitted, tree: Path, project: Project) -> str:
    if _among(path, left_out.ignored) and path.endswith(PROGRAMS):
        add = f"git add -f {shlex.quote(project.seen_from(path))}"
        return f"{path} is ignored by git; the gate trains only committed files. {add}"
    if _among(path, left_out.ignored):
        return (
            f"{path} is ignored by git; the gate trains only committed files. "
            f"{ways_to_have(path, left_out.ignored, tree, project)}"
        )
    if _among(path, left_out.untracked):
        return f"{path} is in no commit yet; the gate trains only committed files. git add it."
    if path.endswith(PROGRAMS):
        return f"{path} is not in the commit. {ONLY_COMMITTED} Commit it, or correct the name."
    seen = project.seen_from(path)
    way = _made_by(path, (), tree, project)
    entry = entry_at(f"/PATH/TO/{posixpath.basename(path)}", seen)
    way = way or f"Declare it where the script looks for it: `{entry}`."
    return f"{path} is not in the commit. {ONLY_COMMITTED} {way} Or commit a small sample of it."


def ways_to_have(path: str, ignored: tuple[str, ...], tree: Path, project: Project) -> str:
    """Return what works for an ignored file, with every path filled in.

    If a script of the commit (its files are in `tree`) makes the file, run that script. Otherwise
    declare the file. A small sample can be committed in either case.
    """
    sample = f"commit a small sample: `git add -f {shlex.quote(project.seen_from(path))}`"
    made = _made_by(path, ignored, tree, project)
    if made:
        return f"{made} Or {sample}."
    place = _ignored_with(path, ignored)
    entry = entry_at(str(project.top / place), project.seen_from(place))
    return f"Declare it where the script looks for it: `{entry}`. Or {sample}."


def _made_by(path: str, ignored: tuple[str, ...], tree: Path, project: Project) -> str:
    """Return the settings that make the file by a script of the commit, or an empty text."""
    script = _preparer(path, tree, project.files)
    # preprocess.out must be below the folder of the settings
    out = project.seen_from(_ignored_with(path, ignored))
    if not script or out.startswith(".."):
        return ""
    program = "python" if script.endswith(".py") else "bash"
    command = shlex.join((program, project.seen_from(script)))
    lines = f"preprocess: {{command: {json.dumps(command)}, out: {json.dumps(out)}}}"
    return f"Let the gate make it: `{lines}`."


def _ignored_with(path: str, ignored: tuple[str, ...]) -> str:
    """Return the ignored folder around a file, the folder of several ignored files, or the file."""
    whole = next((name for name in ignored if name.endswith("/") and path.startswith(name)), "")
    folder = posixpath.dirname(path)
    beside = [name for name in ignored if folder and posixpath.dirname(name) == folder]
    if whole:
        return whole.rstrip("/")
    return folder if len(beside) > 1 else path


def _preparer(path: str, tree: Path, files: Files) -> str:
    """Return the nearest script of the commit whose name says that it makes data, or nothing."""
    folder = posixpath.dirname(path)
    folders = [folder]
    while folder:
        folder = posixpath.dirname(folder)
        folders.append(folder)
    for place in (*folders[:MAX_FOLDERS], *SCRIPT_FOLDERS):
        where = tree / place
        try:
            # follow no link: the commit may have it point anywhere
            files.refuse_links(where, below=tree)
            names = files.list_names(where, max_names=MAX_NAMES) if files.is_folder(where) else ()
        except StorageError:
            continue
        preparer = next((name for name in names if PREPARER.fullmatch(name)), "")
        if preparer:
            return posixpath.join(place, preparer)
    return ""


def _among(path: str, names: tuple[str, ...]) -> bool:
    return any(path.startswith(name) if name.endswith("/") else path == name for name in names)


# the line that the harness prints when the script opens a pointer
POINTER: Final = re.compile(rb"^repro-gate: '([^'\n]{1,300})' is a Git LFS pointer", re.MULTILINE)
FORBIDDEN: Final = re.compile(r"Permission denied: '(/[^'\n]{1,300})'")
MAX_DEPTH: Final = 20
QUOTED: Final = re.compile(r"['\"<]([^'\"<>\n]{1,300})['\">]")
MAX_NAMED: Final = 20
POINTER_BEGINS: Final = b"version https://git-lfs.github.com/spec/"
POINTER_BYTES: Final = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Lacking:
    """A failed training: what it was asked to do, its output, and its last lines.

    `project_workdir` is the folder where it starts, as the settings write it.
    """

    request: ProcessRequest
    snapshot: Snapshot
    project_workdir: str
    output: bytes
    lines: tuple[str, ...]


def data_hint(lacking: Lacking, files: Files) -> str:
    """Return what to declare as data; empty if the output points at no data."""
    return (
        _missing_hint(lacking, files) or _pointer_hint(lacking, files) or _forbidden_hint(lacking)
    )


def _pointer_hint(lacking: Lacking, files: Files) -> str:
    match = POINTER.search(lacking.output)
    path = plain_text(match[1].decode("utf-8", "replace")) if match else ""
    path = path or _named_pointer(lacking, files)
    if not path:
        return ""
    entry = entry_of_pointer("lfs", _from_project(path, lacking))
    return f"{path} is a Git LFS pointer, not its content: declare `{entry}`."


def _named_pointer(lacking: Lacking, files: Files) -> str:
    """Return a pointer of the commit that the last lines name, or an empty text.

    The harness does not see files that C code opens.
    """
    named = [match[1] for line in reversed(lacking.lines) for match in QUOTED.finditer(line)]
    for name in list(dict.fromkeys(named))[:MAX_NAMED]:
        inside = inside_tree(name, _tree(lacking), lacking.snapshot.workdir)
        if inside is not None and _is_pointer(inside, lacking, files):
            return inside
    return ""


def _is_pointer(inside: str, lacking: Lacking, files: Files) -> bool:
    path = lacking.snapshot.tree / inside
    try:
        files.refuse_links(path, below=lacking.snapshot.tree)
        return files.read_bytes(path, max_bytes=POINTER_BYTES).startswith(POINTER_BEGINS)
    except StorageError:
        # no file, or larger than a pointer can be
        return False


def _tree(lacking: Lacking) -> Path:
    """Return where the run's copy of the commit was."""
    return lacking.request.writable[0] if lacking.request.writable else lacking.request.workdir


def _missing_hint(lacking: Lacking, files: Files) -> str:
    path = missing_path(lacking.lines)
    if path is None:
        return ""
    inside = inside_tree(path, _tree(lacking), lacking.snapshot.workdir)
    if inside is not None:
        return _tracked_hint(inside, lacking, files)
    # on the machine itself the path may be mistyped; a container lacks all of the machine's files
    if lacking.request.in_container and _is_outside(path, lacking):
        return f"There is no {path} in the container. Declare it: {_declared(path)}."
    return ""


def _tracked_hint(inside: str, lacking: Lacking, files: Files) -> str:
    """Return the hint for a file that DVC tracks, by itself or with a folder around it."""
    parts = inside.split("/")[:MAX_DEPTH]
    folder = lacking.snapshot.tree
    try:
        for depth, name in enumerate(parts, start=1):
            if files.exists(folder / f"{name}.dvc"):
                entry = entry_of_pointer(
                    "dvc", _from_project(f"{'/'.join(parts[:depth])}.dvc", lacking)
                )
                return (
                    f"DVC keeps {inside}, and the commit contains only its pointer: "
                    f"declare `{entry}`."
                )
            folder /= name
            # follow no link: the commit may have it point anywhere
            if not files.is_folder(folder):
                break
    except StorageError:
        # the text is no valid file name, for example too long
        return ""
    return ""


def _forbidden_hint(lacking: Lacking) -> str:
    forbidden = [match[1] for line in lacking.lines for match in FORBIDDEN.finditer(line)]
    if (
        not forbidden
        or not lacking.request.under_own_account
        or not _is_outside(forbidden[-1], lacking)
    ):
        return ""
    return (
        f"The training's account may not open {forbidden[-1]}. It writes only in the checkout "
        "that it trains in, in its home and in $TMPDIR. To read a file, let every account read it "
        f"and declare it: {_declared(forbidden[-1])}."
    )


def _declared(path: str) -> str:
    names = data_names((path,))
    return f"`{entries_for(names)}`, and read $REPRO_GATE_DATA/{names[path]}"


def _is_outside(path: str, lacking: Lacking) -> bool:
    """Return whether an absolute path is in none of the run's own folders."""
    temporary = lacking.request.env.get("TMPDIR", "/")
    own = (*lacking.request.writable, *lacking.request.readable)
    if temporary != "/" and Path(path).is_relative_to(temporary):
        return False
    return path.startswith("/") and not any(Path(path).is_relative_to(folder) for folder in own)


def _from_project(path: str, lacking: Lacking) -> str:
    """Return a path from the repository's root as the settings would write it."""
    up = posixpath.relpath(".", lacking.project_workdir)
    project = posixpath.normpath(posixpath.join(lacking.snapshot.workdir, up))
    return posixpath.relpath(path, project)
