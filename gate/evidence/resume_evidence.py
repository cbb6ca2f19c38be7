"""Carry the checkpoint of an interrupted run to the resumed run.

It is the only thing that one run writes and another one reads, so it goes through the gate. The
gate copies it out of the training's reach, without following links and within limits. It is put
back under the digests of that copy.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, Final

from pydantic import Field

from gate.errors import RunError, StorageError
from gate.evidence.observations import MAX_CARRIED_FILES, KilledSave, KillFacts, LeftBy
from gate.settings.variations import KillPoint
from gate.system.files.port import Files
from gate.text.digests import sha256_hex
from gate.text.document import Document
from gate.text.untrusted_text import plain_text
from gate.training.runs import CarriedCheckpoint, CarriedFile

MAX_CARRIED_BYTES: Final = 64 * 1024**3
MAX_DEPTH: Final = 12
# the look at a killed run's checkpoint gets at most this many file names
MAX_LISTED: Final = 1000


class CheckpointLook(Document):
    """What an ended run left at the checkpoint's path, as `gate.evidence.left_checkpoint` reads it.

    `absent` is true if nothing is there. `problem` says why it is not complete, and `unsure` why
    this cannot be decided. `parts` are the parts of its state, `unread` its files of unknown
    content, and `files` the names of all files in a folder (empty above `MAX_LISTED`). `beside` is
    the name of a complete checkpoint beside an incomplete one. `kill` is what the run wrote before
    it was killed inside a save. `in_place` is true if a complete checkpoint has a file of the same
    name.
    """

    absent: bool = False
    unsure: str = Field(default="", max_length=1000)
    in_place: bool = False
    files: Annotated[
        tuple[Annotated[str, Field(max_length=4000)], ...], Field(max_length=MAX_LISTED)
    ] = ()
    problem: str = Field(default="", max_length=1000)
    parts: Annotated[tuple[Annotated[str, Field(max_length=60)], ...], Field(max_length=20)] = ()
    unread: Annotated[
        tuple[Annotated[str, Field(max_length=4000)], ...], Field(max_length=100)
    ] = ()
    beside: str = Field(default="", max_length=200)
    kill: KillFacts | None = None


NO_SAVE: Final = "torch.save was not called behind resume.at_step"


def left_by_kill(point: KillPoint, look: CheckpointLook, failure: str) -> KilledSave:
    """Return what a run left that was to be killed at `point`; `failure` is a clause on its end."""
    kill = look.kill
    if kill is None or kill.why:
        why = (failure or NO_SAVE) if kill is None else kill.why
        why = f"the save could not be interrupted: {why}"
        return KilledSave(point=point, left=LeftBy.NOT_CHECKED, why=why[:1000])
    if look.unsure:
        return KilledSave(point=point, left=LeftBy.NOT_CHECKED, why=look.unsure)
    if not look.absent and not look.problem:
        left = LeftBy.COMPLETE
    elif look.beside:
        left = LeftBy.BESIDE
    elif look.absent:
        left = LeftBy.LOST if kill.had_one else LeftBy.NOTHING_YET
    else:
        left = LeftBy.TORN
    return KilledSave(
        point=point,
        left=left,
        in_place=look.in_place,
        why=look.problem,
        step=kill.step,
        path=kill.path,
        file=kill.file,
        line=kill.line,
        size_bytes=kill.size_bytes,
        byte=kill.byte,
    )


def carried_digest(carried: CarriedCheckpoint) -> str:
    """Return one digest over the names and bytes of all files."""
    lines = (f"{file.sha256}  {file.name}\n" for file in carried.files)
    return sha256_hex("".join(lines).encode("utf-8"))


def carry_checkpoint(
    files: Files, workdir: Path, place: str, target: Path, step: int
) -> CarriedCheckpoint:
    """Copy the checkpoint of an ended run into the gate's own folder `target`.

    If there is no checkpoint, the result has no files. Raises `RunError` for a link, for anything
    other than files and folders, and above the limits.
    """
    source = workdir / place
    try:
        # the run chose what is at this path, and a link could lead out of its folder
        files.refuse_links(source, below=workdir)
        if not files.exists(source):
            return CarriedCheckpoint(place=place, step=step, files=())
        files.fresh_folder(target)
        names = tuple(names_below(files, source)) if files.is_folder(source) else ("",)
        carried = []
        left = MAX_CARRIED_BYTES
        for name in names:
            copy = target / name if name else target / "file"
            sha256 = files.copy_file(source / name if name else source, copy, max_bytes=left)
            with files.open_binary(copy, max_bytes=left) as opened:
                size = opened.seek(0, os.SEEK_END)
            # one limit for all files together
            left -= size
            carried.append(CarriedFile(name=name, path=copy, sha256=sha256, size_bytes=size))
    except StorageError as error:
        raise RunError(
            f"the checkpoint {place} (resume.checkpoint) cannot be carried to the resumed run: "
            f"{plain_text(error.message).replace(f'{workdir}/', '')}",
            hint="Save it as a file, or as a folder of files, without links: name what the link "
            "leads to in resume.checkpoint.",
        ) from error
    return CarriedCheckpoint(place=place, step=step, files=tuple(carried))


def names_below(files: Files, folder: Path) -> Iterator[str]:
    """Yield the paths of all files below a folder.

    Raises `StorageError` for too many files or too deep folders.
    """
    names = 0
    pending = [PurePosixPath()]
    while pending:
        place = pending.pop()
        for name in files.list_names(folder / place, max_names=MAX_CARRIED_FILES):
            below = place / name
            names += 1
            if names > MAX_CARRIED_FILES or len(below.parts) > MAX_DEPTH:
                raise StorageError(
                    f"it has more than {MAX_CARRIED_FILES:,} files, or folders {MAX_DEPTH} deep"
                )
            if files.is_folder(folder / below):
                pending.append(below)
            else:
                # a link counts as a file here, and is refused when it is copied
                yield below.as_posix()
