"""Data that a failed training lacked, with the entry of `data` that would declare it.

All paths come from what the training printed: they are shown, and never opened.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gate.data.declaring import entries_for, entry_of_pointer, names_of
from gate.errors import StorageError
from gate.isolation.process_request import ProcessRequest
from gate.system.files.port import Files
from gate.text.untrusted_text import plain_text
from gate.training.missing_files import inside_tree, missing_path
from gate.training.runs import Snapshot

# the harness says so when the script opens one
POINTER: Final = re.compile(rb"^repro-gate: '([^'\n]{1,300})' is a Git LFS pointer", re.MULTILINE)
FORBIDDEN: Final = re.compile(r"Permission denied: '(/[^'\n]{1,300})'")
MAX_DEPTH: Final = 20
QUOTED: Final = re.compile(r"['\"<]([^'\"<>\n]{1,300})['\">]")
MAX_NAMED: Final = 20
POINTER_BEGINS: Final = b"version https://git-lfs.github.com/spec/"
POINTER_BYTES: Final = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Lacking:
    """A training that failed: what it was asked to do, its output, and its last lines.

    `project_workdir` is the folder where it starts, as the settings have it.
    """

    request: ProcessRequest
    snapshot: Snapshot
    project_workdir: str
    output: bytes
    lines: tuple[str, ...]


def data_hint(lacking: Lacking, files: Files) -> str:
    """What to declare; empty where the output points at no data."""
    return (
        _missing_hint(lacking, files) or _pointer_hint(lacking, files) or _forbidden_hint(lacking)
    )


def _pointer_hint(lacking: Lacking, files: Files) -> str:
    found = POINTER.search(lacking.output)
    path = plain_text(found[1].decode("utf-8", "replace")) if found else ""
    path = path or _named_pointer(lacking, files)
    if not path:
        return ""
    entry = entry_of_pointer("lfs", _from_project(path, lacking))
    return f"{path} is a Git LFS pointer, not its content: declare `{entry}`."


def _named_pointer(lacking: Lacking, files: Files) -> str:
    """A pointer of the commit that the last lines name: what C code opens, no harness sees."""
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
        # no file, or none that is as short as a pointer is
        return False


def _tree(lacking: Lacking) -> Path:
    """Where the run's copy of the commit lay."""
    return lacking.request.writable[0] if lacking.request.writable else lacking.request.workdir


def _missing_hint(lacking: Lacking, files: Files) -> str:
    path = missing_path(lacking.lines)
    if path is None:
        return ""
    inside = inside_tree(path, _tree(lacking), lacking.snapshot.workdir)
    if inside is not None:
        return _tracked_hint(inside, lacking, files)
    # on the machine itself the path may be mistyped; a container has nothing of the machine's
    if lacking.request.in_container and _is_outside(path, lacking):
        return f"There is no {path} in the container. Declare it: {_declared(path)}."
    return ""


def _tracked_hint(inside: str, lacking: Lacking, files: Files) -> str:
    """Where the commit has a file of DVC's for it, or for a folder that it lies in."""
    parts = inside.split("/")[:MAX_DEPTH]
    folder = lacking.snapshot.tree
    try:
        for depth, name in enumerate(parts, start=1):
            if files.exists(folder / f"{name}.dvc"):
                entry = entry_of_pointer(
                    "dvc", _from_project(f"{'/'.join(parts[:depth])}.dvc", lacking)
                )
                return (
                    f"DVC keeps {inside}, and the commit has its pointer alone: declare `{entry}`."
                )
            folder /= name
            # no link is followed: the commit may have it point anywhere
            if not files.is_folder(folder):
                break
    except StorageError:
        # no name of a file, such as one that is too long
        return ""
    return ""


def _forbidden_hint(lacking: Lacking) -> str:
    found = [match[1] for line in lacking.lines for match in FORBIDDEN.finditer(line)]
    if not found or not lacking.request.under_own_account or not _is_outside(found[-1], lacking):
        return ""
    return (
        f"The training's account may not open {found[-1]}. It writes only in the checkout that it "
        "trains in, in its home and in $TMPDIR. To read a file, let every account read it and "
        f"declare it: {_declared(found[-1])}."
    )


def _declared(path: str) -> str:
    names = names_of((path,))
    return f"`{entries_for(names)}`, and read $REPRO_GATE_DATA/{names[path]}"


def _is_outside(path: str, lacking: Lacking) -> bool:
    """Whether an absolute path lies in no folder of the run's own."""
    temporary = lacking.request.env.get("TMPDIR", "/")
    own = (*lacking.request.writable, *lacking.request.readable)
    if temporary != "/" and Path(path).is_relative_to(temporary):
        return False
    return path.startswith("/") and not any(Path(path).is_relative_to(folder) for folder in own)


def _from_project(path: str, lacking: Lacking) -> str:
    """A path from the repository's root as the settings would name it."""
    up = posixpath.relpath(".", lacking.project_workdir)
    project = posixpath.normpath(posixpath.join(lacking.snapshot.workdir, up))
    return posixpath.relpath(path, project)
