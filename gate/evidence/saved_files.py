"""What the script saved itself (train.checkpoint): copied out of the training's reach, then read.

Nothing is parsed here. What cannot be packed under the names that the script chose is read where it
lies, as in every run that is not packed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from gate.errors import EvidenceError, StorageError
from gate.evidence.run_evidence import SAVED_FILE, KeptFile, SavedFiles
from gate.evidence.state_manifest import MAX_STATE_BYTES, SAVED_FOLDER
from gate.system.files.port import Files
from gate.text.members import MODEL_FOLDER
from gate.text.package_names import colliding, name_problem
from gate.text.untrusted_text import plain_text, short_text

# as many files as reading a state keeps open, and as deep as it looks
MAX_FILES: Final = 800
MAX_DEPTH: Final = 8
MAX_VISITS: Final = 10_000
# how a reading request calls the copy; no file of the harness is called so
SAVED_COPY: Final = "checkpoint"
# such a file names others that lie beside it, and no folder says which of them belong to it
INDEX_SUFFIX: Final = ".index.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedCopy:
    """Copies in the gate's own folder, by their names below what the script saved.

    `tree` stands in the place of the training's working directory. It is None, and `files` empty,
    where nothing was copied; `kept.left_out` says why.
    """

    kept: SavedFiles
    tree: Path | None = None
    files: tuple[tuple[Path, KeptFile], ...] = ()


def capture_saved(
    files: Files, workdir_tree: Path, checkpoint: str, target: Path
) -> SavedCopy | None:
    """Copy the file or folder to `target`; None where the script saved none, or below a link.

    What no reader takes, such as too many files, is left to the reader too. Raises `EvidenceError`
    for what cannot be copied: a pipe, a link, more than fits.
    """
    source = workdir_tree / checkpoint
    if not files.exists(source):
        return None
    is_folder = files.is_folder(source)
    try:
        files.refuse_links(source, below=workdir_tree)
        names = tuple(_names(files, source)) if is_folder else (PurePosixPath(checkpoint).name,)
    except StorageError:
        # whoever reads it refuses it, and says so in its own words
        return None
    if len(names) > MAX_FILES:
        return None
    why = _why_not(names, is_folder=is_folder)
    if why:
        return SavedCopy(kept=SavedFiles(is_folder=is_folder, left_out=why))
    try:
        copied = tuple(_copied(files, source, target / checkpoint, names, is_folder=is_folder))
    except StorageError as error:
        raise EvidenceError(
            f"{checkpoint} cannot be copied: {plain_text(error.message)}", hint=error.hint
        ) from error
    return SavedCopy(kept=SavedFiles(is_folder=is_folder), tree=target, files=copied)


def _names(files: Files, folder: Path) -> Iterator[str]:
    """Paths of all files below a folder, or of one more than may be; folders count as well."""
    found = 0
    pending = [PurePosixPath()]
    while pending:
        place = pending.pop()
        for name in files.list_names(folder / place, max_names=MAX_FILES):
            below = place / name
            if len(below.parts) <= MAX_DEPTH and files.is_folder(folder / below):
                pending.append(below)
            else:
                yield below.as_posix()
            found += 1
            if found > MAX_VISITS:
                raise StorageError(f"{folder.name} holds more than {MAX_VISITS:,} names")


def _why_not(names: tuple[str, ...], *, is_folder: bool) -> str:
    """Why a state under these names is not packed; empty where it is."""
    if not is_folder and names[0].endswith(INDEX_SUFFIX):
        return "it is an index of files beside it: name their folder"
    packed = [f"{MODEL_FOLDER}/{name}" for name in names]
    for name, member in zip(names, packed, strict=True):
        problem = name_problem(member)
        if not problem and not SAVED_FILE.fullmatch(SAVED_FOLDER + name):
            problem = "is too long, or begins or ends with a blank"
        if problem:
            return f"a package cannot hold one of its names: {short_text(name)} {problem}"
    pair = colliding(packed)
    if pair is None:
        return ""
    one, other = (short_text(member.removeprefix(f"{MODEL_FOLDER}/")) for member in pair)
    return f"a package cannot hold both {one} and {other}: on some disks they are one"


def _copied(
    files: Files, source: Path, place: Path, names: tuple[str, ...], *, is_folder: bool
) -> Iterator[tuple[Path, KeptFile]]:
    left = MAX_STATE_BYTES
    for name in names:
        path = place / name if is_folder else place
        digest = files.copy_file(source / name if is_folder else source, path, max_bytes=left)
        with files.open_binary(path, max_bytes=left) as copy:
            left -= copy.seek(0, os.SEEK_END)
        yield path, KeptFile(name=SAVED_FOLDER + name, sha256=digest)
