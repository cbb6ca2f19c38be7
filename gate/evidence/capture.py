"""Copy files of a run out of the training's reach before anything reads them.

The bytes that are hashed, compared and packed are those of the copy (T3). A later change of the
training's own file has no effect.

Nothing is parsed here. That is why this code is separate from `saved_state.py`, which parses files:
the process that holds the key imports this module and no parser (T5).

A saved state whose file names a package cannot hold is not copied. It is read in place, as in every
run that is not packed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from gate.checkpoint.digest import CAPTURED_LEAF, SAVED_LEAF, roots_below, roots_of_listed
from gate.checkpoint.tensor_hashing import ALGORITHM
from gate.errors import EvidenceError, StorageError
from gate.evidence.harness_files import MAX_NAMES
from gate.evidence.python_processes import TrainingSpan, several_processes
from gate.evidence.run_evidence import (
    SAVED_FILE,
    CheckpointManifest,
    EvidenceSet,
    KeptFile,
    RunEvidence,
    SavedFiles,
    StateName,
    StateRoots,
)
from gate.system.files.port import Files
from gate.text.digests import sha256_hex
from gate.text.package_names import MODEL_FOLDER, STATE_MEMBER, colliding, name_problem
from gate.text.untrusted_text import plain_text, short_text
from gate.training.runs import FIRST_STRICT, SECOND_STRICT, PlannedRun

OUTPUT_FILE: Final = "output.txt"

STATE_FILE = "state.safetensors"
GRADIENTS_FILE = "gradients.safetensors"
# The first run's state is packed. The second run's is kept only if it differs, to be compared
# number by number.
FIRST_STATE, SECOND_STATE = f"{FIRST_STRICT}/{STATE_FILE}", f"{SECOND_STRICT}/{STATE_FILE}"
KEPT = {"state": STATE_FILE, "gradients": GRADIENTS_FILE}


@dataclass(frozen=True, kw_only=True, slots=True)
class CapturedFile:
    """A copy of a harness file in the gate's own folder.

    `name` is its name in the harness's folder, `kept_name` the one in the evidence. `sha256` covers
    the bytes as they were copied.
    """

    name: str
    kept_name: str
    path: Path
    sha256: str


def kinds_of(planned: PlannedRun) -> tuple[str, ...]:
    """Return which of rank 0's files are copied after this run, as keys of `KEPT`."""
    if planned.keep_values:
        return ("state", "gradients")
    return ("state",) if planned.label in {FIRST_STRICT, SECOND_STRICT} else ()


def ends_diverged(first: RunEvidence, second: RunEvidence) -> bool:
    """Return whether rank 0 ended in different captured states in the two runs."""
    return captured_digests(first) != captured_digests(second)


def captured_digests(run: RunEvidence) -> dict[str, str]:
    """Return the SHA-256 of each leaf that the harness captured on rank 0, by name."""
    return _digests_below(run, CAPTURED_LEAF)


def saved_digests(run: RunEvidence) -> dict[str, str]:
    """Return the SHA-256 of each leaf that the script saved itself, by name."""
    return _digests_below(run, SAVED_LEAF)


def _digests_below(run: RunEvidence, leaf: re.Pattern[str]) -> dict[str, str]:
    return {
        tensor.name: tensor.sha256 for tensor in run.checkpoint.tensors if leaf.match(tensor.name)
    }


def capture_files(
    files: Files, out: Path, target: Path, kinds: tuple[str, ...]
) -> tuple[CapturedFile, ...]:
    """Copy rank 0's files of these kinds (keys of `KEPT`) from the harness's folder to `target`.

    A missing file is skipped here; the reader reports it. Raises `EvidenceError` for a link, a pipe
    or a file that is too large. Two files of one kind are an error too: one might be compared and
    the other packed.
    """
    try:
        names = files.list_names(out, max_names=MAX_NAMES) if kinds else ()
        return tuple(
            _taken(files, out / name, target, kind) for kind, name in _kinds_and_names(names, kinds)
        )
    except StorageError as error:
        raise EvidenceError(
            f"the run's files cannot be copied: {plain_text(error.message)}",
            hint=error.hint,
        ) from error


def _kinds_and_names(names: tuple[str, ...], kinds: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    matched: list[tuple[str, str]] = []
    for kind in kinds:
        # Only rank 0's state is kept: it has the model as it would be saved. The states of other
        # ranks are compared by their digests.
        pattern = re.compile(rf"{kind}-r0-(0|[1-9][0-9]{{0,9}})\.safetensors\Z")
        # the training can write to this folder too, so two files of a kind are possible
        matching = [name for name in names if pattern.match(name)]
        if len(matching) > 1:
            pids = sorted((pattern.match(name) or [""] * 2)[1] for name in matching)
            raise several_processes(0, [TrainingSpan(pid=int(pid)) for pid in pids])
        matched += [(kind, name) for name in matching]
    return tuple(matched)


def _taken(files: Files, source: Path, target: Path, kind: str) -> CapturedFile:
    path = target / source.name
    digest = files.copy_file(source, path, max_bytes=MAX_STATE_BYTES)
    return CapturedFile(name=source.name, kept_name=KEPT[kind], path=path, sha256=digest)


class KeptFiles:
    """The outputs and captured files that were moved to the evidence, with their digests.

    Each digest is the one of the bytes that were read.
    """

    def __init__(self, folder: Path, files: Files) -> None:
        """Keep files below `folder`, the folder of the evidence."""
        self._folder = folder
        self._adapter = files
        self.files: list[KeptFile] = []

    def keep_saved(self, copies: tuple[tuple[Path, KeptFile], ...]) -> None:
        """Move the files that the script saved to the place that the package takes them from."""
        for path, kept in copies:
            self._adapter.move_file(path, self._folder / kept.name)
            self.files.append(kept)

    def keep(self, label: str, output: bytes, taken: tuple[CapturedFile, ...]) -> None:
        """Write a run's output to the folder of the run, and move its captured files there."""
        folder = self._folder / label
        self._adapter.fresh_folder(folder)
        self._adapter.write_bytes(folder / OUTPUT_FILE, output)
        digests = {OUTPUT_FILE: sha256_hex(output)}
        for captured in taken:
            # Move the file and do not read it again: the digest covers the bytes that were read
            # before.
            self._adapter.move_file(captured.path, folder / captured.kept_name)
            digests[captured.kept_name] = captured.sha256
        self.files += [
            KeptFile(name=f"{label}/{name}", sha256=digest) for name, digest in digests.items()
        ]

    def file(self, name: str) -> tuple[Path, str]:
        """Return the path of a kept file, and the SHA-256 that it had when it was kept."""
        kept = next(kept for kept in self.files if kept.name == name)
        return self._folder / name, kept.sha256


# the limits of the reader: files that it keeps open, and depth of folders that it searches
MAX_FILES: Final = 800
MAX_DEPTH: Final = 8
MAX_VISITS: Final = 10_000
# the name of the copy in a reading request; no harness file has this name
SAVED_COPY: Final = "checkpoint"
# An index names the files next to it. A copy of the index alone would miss them, and no folder
# tells which files belong to it.
INDEX_SUFFIX: Final = ".index.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedCopy:
    """Copies of what the script saved, in the gate's own folder.

    `files` has the path of each copy and its record. `tree` replaces the training's working
    directory when the state is read. If nothing was copied, `tree` is None, `files` is empty, and
    `kept.left_out` says why.
    """

    kept: SavedFiles
    tree: Path | None = None
    files: tuple[tuple[Path, KeptFile], ...] = ()


def capture_saved(
    files: Files, workdir_tree: Path, checkpoint: str, target: Path
) -> SavedCopy | None:
    """Copy the file or folder that the script saved to `target`.

    Returns None if there is none, if its path leads through a link, or if it has too many files.
    The reader then refuses it with its own message. Raises `EvidenceError` if it cannot be copied,
    because of a pipe, a link or its size.
    """
    source = workdir_tree / checkpoint
    if not files.exists(source):
        return None
    is_folder = files.is_folder(source)
    try:
        # a link could lead the copy to a file that only the gate can read (T3)
        files.refuse_links(source, below=workdir_tree)
        names = tuple(_names(files, source)) if is_folder else (PurePosixPath(checkpoint).name,)
    except StorageError:
        # the reader refuses it too, with a message of its own
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
    """Yield the paths of all files below a folder.

    A folder below `MAX_DEPTH` is yielded like a file. Raises `StorageError` after `MAX_VISITS`
    names, including those of folders.
    """
    names = 0
    pending = [PurePosixPath()]
    while pending:
        place = pending.pop()
        for name in files.list_names(folder / place, max_names=MAX_FILES):
            below = place / name
            if len(below.parts) <= MAX_DEPTH and files.is_folder(folder / below):
                pending.append(below)
            else:
                yield below.as_posix()
            # folders count too: a tree of empty folders has to end at the limit as well
            names += 1
            if names > MAX_VISITS:
                raise StorageError(
                    f"{folder.name} contains more than {MAX_VISITS:,} names",
                    hint="Let the script write fewer files, or name a narrower folder.",
                )


def _why_not(names: tuple[str, ...], *, is_folder: bool) -> str:
    """Return why a state with these file names is not packed, or an empty text if it is."""
    if not is_folder and names[0].endswith(INDEX_SUFFIX):
        return "it is an index of files next to it: name their folder"
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
    left, right = (short_text(member.removeprefix(f"{MODEL_FOLDER}/")) for member in pair)
    return f"a package cannot hold both {left} and {right}: on some disks they are one"


def _copied(
    files: Files, source: Path, place: Path, names: tuple[str, ...], *, is_folder: bool
) -> Iterator[tuple[Path, KeptFile]]:
    # one limit for all files together
    left = MAX_STATE_BYTES
    for name in names:
        path = place / name if is_folder else place
        digest = files.copy_file(source / name if is_folder else source, path, max_bytes=left)
        with files.open_binary(path, max_bytes=left) as copy:
            left -= copy.seek(0, os.SEEK_END)
        yield path, KeptFile(name=SAVED_FOLDER + name, sha256=digest)


MAX_STATE_BYTES = 64 * 1024**3
# the folder in the evidence with the files that the script saved
SAVED_FOLDER: Final = f"{FIRST_STRICT}/{MODEL_FOLDER}/"


def roots_fit(claimed: CheckpointManifest) -> bool:
    """Return whether a manifest from another job has the roots that its own leaves give."""
    roots = roots_of_listed(claimed.tensors)
    return (claimed.algorithm, claimed.root, claimed.parts) == (ALGORITHM, roots.whole, roots.parts)


def state_roots(run: RunEvidence, evidence: EvidenceSet) -> tuple[StateRoots, ...]:
    """Return the roots of each state of a run, as `repro-gate digest` gives them for its file."""
    states = (
        (StateName.CAPTURED, CAPTURED_LEAF, STATE_MEMBER),
        (StateName.SAVED, SAVED_LEAF, saved_member(evidence)),
    )
    return tuple(
        StateRoots(
            name=name, member=member, algorithm=ALGORITHM, root=roots.whole, parts=roots.parts
        )
        for name, prefix, member in states
        if (roots := roots_below(run.checkpoint.tensors, prefix)) is not None
    )


def saved_member(evidence: EvidenceSet) -> str:
    """Return the package's member with the state that the script saved, or an empty text."""
    if evidence.saved is None or evidence.saved.left_out:
        return ""
    if evidence.saved.is_folder:
        return MODEL_FOLDER
    name = next(kept.name for kept in evidence.kept if kept.name.startswith(SAVED_FOLDER))
    return f"{MODEL_FOLDER}/{name.removeprefix(SAVED_FOLDER)}"
