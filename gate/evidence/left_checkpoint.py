"""Decide whether what a killed run left at the checkpoint's path is complete.

Complete means that it opens and that every byte can be read. A file of a known format ends where it
says, and each entry has the right CRC-32. A folder may contain any other files, so it is compared
with a complete checkpoint, which shows what must not be missing.

A save may be cut in a file whose name no complete checkpoint has, such as `last.pt.part`. Such a
file is left over: a script that resumes from the folder ignores it, or reads an older file of
another name.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from gate.checkpoint.completeness import Contents, Part, contents_of
from gate.checkpoint.digest import digest_state
from gate.checkpoint.formats.file_formats import UnknownContent
from gate.checkpoint.formats.formats import open_state
from gate.checkpoint.untrusted_files import ReadableFiles, is_plain_name
from gate.errors import EvidenceError, StorageError
from gate.evidence.capture import MAX_STATE_BYTES
from gate.evidence.harness_files import HarnessFile, KillFile, find_processes, read_own_document
from gate.evidence.observations import KillFacts
from gate.evidence.resume_evidence import MAX_LISTED, CheckpointLook, names_below
from gate.system.files.port import Files
from gate.text.phrases import joined
from gate.text.untrusted_text import plain_text

# parts that every save of a script contains, no matter when it is made
LASTING = (Part.MODEL, Part.OPTIMIZER, Part.SCHEDULER, Part.SCALER, Part.AVERAGE)
MAX_UNREAD = 100


def look_at_checkpoint(
    files: Files, out: Path, tree: Path, place: str, whole: CheckpointLook | None
) -> CheckpointLook:
    """Return what an ended run left at `place` below `tree`.

    `whole` is the look at a complete checkpoint of the same script, if there is one. Raises
    `StorageError` for a link in the path, and `EvidenceError` for files that the harness never
    writes.
    """
    path, every = tree / place, _kill_facts(files, out)
    left_file = every[0] if every else None
    files.refuse_links(path, below=tree)
    if files.exists(path):
        listed = _listed(files, path)
        looked = _looked(files, path, place, whole)
        if whole is not None and looked.problem:
            cut = {kill_file.inside for kill_file in every}
            looked = _without_leftovers(files, path, place, whole, listed, cut) or looked
        looked = looked.model_copy(update={"files": listed})
    else:
        looked = CheckpointLook(absent=True)
    beside, in_place = "", False
    if whole is not None and left_file is not None:
        in_place = left_file.inside == "." or left_file.inside in whole.files
        if looked.absent or looked.problem:
            # the names come from the run, so a name such as `../x` is possible (CWE-22)
            names = (name for name in left_file.beside if is_plain_name(name))
            beside = next((name for name in names if _is_whole(files, path, name, whole)), "")
    return looked.model_copy(update={"kill": left_file, "beside": beside, "in_place": in_place})


def _without_leftovers(
    files: Files,
    path: Path,
    shown: str,
    whole: CheckpointLook,
    listed: Collection[str],
    cut: Collection[str],
) -> CheckpointLook | None:
    """Return the look at a folder without its left-over files, or None if that is incomplete too.

    The left-over files are those in `cut` that no complete checkpoint has.
    """
    left_over = {name for name in cut if name not in {"", ".", *whole.files}}
    if not whole.files or not left_over:
        return None
    kept = {above for name in {*listed} - left_over for above in PurePosixPath(name).parents}
    emptied = {above for name in left_over for above in PurePosixPath(name).parents} - kept
    hidden = frozenset(path / name for name in {*map(PurePosixPath, left_over), *emptied})
    looked = _looked(_Without(files=files, hidden=hidden), path, shown, whole)
    if looked.problem:
        return None
    gone = next((name for name in whole.files if name not in listed), "")
    if gone:
        # What remains may be parts of several checkpoints, none of which is complete.
        why = f"{shown}/{plain_text(gone)}, which a complete one has, was removed before the save"
        return looked.model_copy(update={"unsure": why[:1000]})
    return looked


@dataclass(frozen=True, kw_only=True, slots=True)
class _Without(ReadableFiles):
    """A view of the file system in which some paths are hidden."""

    files: Files
    hidden: frozenset[Path]

    def open_binary(self, path: Path, *, max_bytes: int) -> AbstractContextManager[BinaryIO]:
        """As in `ReadableFiles`."""
        return self.files.open_binary(path, max_bytes=max_bytes)

    def is_folder(self, path: Path) -> bool:
        """As in `ReadableFiles`."""
        return self.files.is_folder(path)

    def list_names(self, folder: Path, *, max_names: int) -> tuple[str, ...]:
        """As in `ReadableFiles`, without the hidden names."""
        names = self.files.list_names(folder, max_names=max_names)
        return tuple(name for name in names if folder / name not in self.hidden)


def _is_whole(files: Files, path: Path, name: str, whole: CheckpointLook) -> bool:
    other = path.parent / name
    return name != path.name and not _looked(files, other, plain_text(name), whole).problem


def _listed(files: Files, path: Path) -> tuple[str, ...]:
    """Return the names of all files below a folder, or none if there are too many to report."""
    if not files.is_folder(path):
        return ()
    try:
        # one more than the limit shows that there are too many
        names = sorted(islice(names_below(files, path), MAX_LISTED + 1))
        # a name that is not UTF-8 cannot be written to the JSON answer of the reader
        "".join(names).encode("utf-8")
    except (StorageError, UnicodeEncodeError):
        return ()
    return tuple(names) if len(names) <= MAX_LISTED else ()


def _looked(
    files: ReadableFiles, path: Path, shown: str, whole: CheckpointLook | None
) -> CheckpointLook:
    # a folder may also contain text files; a single file has to be a state
    unknown = UnknownContent.BYTES if files.is_folder(path) else UnknownContent.REFUSE
    try:
        with open_state(files, path, shown, max_bytes=MAX_STATE_BYTES, unknown=unknown) as content:
            # exclude nothing, so that any part that is cut is noticed
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
    """Return what a complete checkpoint has and this one lacks, or an empty text."""
    if whole is None:
        return ""
    missing = [part for part in whole.parts if part not in look.parts]
    if missing:
        return f"{shown}: lacks the {joined(missing)}"
    cut = set(contents.unread) - set(whole.unread)
    if cut:
        return f"{shown}: {plain_text(PurePosixPath(min(cut)).name)} is cut short"
    return ""


def _kill_facts(files: Files, out: Path) -> tuple[KillFacts, ...]:
    """Return what each rank reported, those that were killed inside a save first."""
    files_left = [
        read_own_document(files, out, process, HarnessFile.KILL, KillFile)
        for process in find_processes(files, out)
        if HarnessFile.KILL in process.kinds
    ]
    files_left.sort(key=lambda kill_file: (bool(kill_file.why), kill_file.rank))
    return tuple(map(_plain, files_left))


def _plain(kill_file: KillFile) -> KillFacts:
    facts = kill_file.model_dump(exclude={"pid", "rank"})
    texts = {name: plain_text(facts[name])[:200] for name in ("path", "file", "why")}
    return KillFacts.model_validate(facts | texts)
