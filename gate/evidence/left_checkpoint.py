"""Whether what lies at a checkpoint's path is complete: it opens, and every byte of it is read.

A file of a known format ends where it says, and the CRC-32 of each entry is that of its bytes. In a
folder any other file may lie, so what a complete one consists of says what must not be missing.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from gate.checkpoint.completeness import Contents, Part, contents_of
from gate.checkpoint.digest import digest_state
from gate.checkpoint.formats.file_formats import UnknownContent
from gate.checkpoint.formats.formats import open_state
from gate.checkpoint.untrusted_files import is_plain_name
from gate.errors import EvidenceError
from gate.evidence.capture import MAX_STATE_BYTES
from gate.evidence.harness_files import HarnessFile, KillFile, find_processes, read_own_document
from gate.evidence.observations import KillFacts
from gate.evidence.resume_evidence import CheckpointLook
from gate.system.files.port import Files
from gate.text.phrases import joined
from gate.text.untrusted_text import plain_text

# what every save of a script holds, whenever it is made
LASTING = (Part.MODEL, Part.OPTIMIZER, Part.SCHEDULER, Part.SCALER, Part.AVERAGE)
MAX_UNREAD = 100


def look_at_checkpoint(
    files: Files, out: Path, tree: Path, place: str, whole: CheckpointLook | None
) -> CheckpointLook:
    """What an ended run left at `place` below `tree`; `whole` is a complete one of the script.

    Raises `StorageError` for a link on the way, and `EvidenceError` for what the harness never
    writes.
    """
    path, told = tree / place, _told(files, out)
    files.refuse_links(path, below=tree)
    if files.exists(path):
        found = _looked(files, path, place, whole)
    else:
        found = CheckpointLook(absent=True)
    beside = ""
    if whole is not None and told is not None and (found.absent or found.problem):
        names = (name for name in told.beside if is_plain_name(name))
        beside = next((name for name in names if _is_whole(files, path, name, whole)), "")
    return found.model_copy(update={"kill": told, "beside": beside})


def _is_whole(files: Files, path: Path, name: str, whole: CheckpointLook) -> bool:
    other = path.parent / name
    return name != path.name and not _looked(files, other, plain_text(name), whole).problem


def _looked(files: Files, path: Path, shown: str, whole: CheckpointLook | None) -> CheckpointLook:
    # in a folder lie texts too; a single file has to be a state
    unknown = UnknownContent.BYTES if files.is_folder(path) else UnknownContent.REFUSE
    try:
        with open_state(files, path, shown, max_bytes=MAX_STATE_BYTES, unknown=unknown) as content:
            # nothing is excluded: whatever is cut off is to be found
            digest_state(content, exclusions=(), max_bytes=MAX_STATE_BYTES)
            contents = contents_of(content)
    except EvidenceError as error:
        return CheckpointLook(problem=error.message[:1000])
    look = CheckpointLook(
        parts=tuple(part.value for part in LASTING if contents.of(part)),
        unread=contents.unread[:MAX_UNREAD],
    )
    return look.model_copy(update={"problem": _short_of(look, contents, shown, whole)[:1000]})


def _short_of(
    look: CheckpointLook, contents: Contents, shown: str, whole: CheckpointLook | None
) -> str:
    """What a complete one has and this one lacks."""
    if whole is None:
        return ""
    missing = [part for part in whole.parts if part not in look.parts]
    if missing:
        return f"{shown}: lacks the {joined(missing)}"
    cut = set(contents.unread) - set(whole.unread)
    if cut:
        return f"{shown}: {plain_text(PurePosixPath(min(cut)).name)} is cut short"
    return ""


def _told(files: Files, out: Path) -> KillFacts | None:
    """What the first rank told that was killed inside a save, else the first that was not."""
    told = [
        read_own_document(files, out, process, HarnessFile.KILL, KillFile)
        for process in find_processes(files, out)
        if HarnessFile.KILL in process.kinds
    ]
    told.sort(key=lambda one: (bool(one.why), one.rank))
    if not told:
        return None
    facts = told[0].model_dump(exclude={"pid", "rank"})
    texts = {name: plain_text(facts[name])[:200] for name in ("path", "file", "why")}
    return KillFacts.model_validate(facts | texts)
