"""What is kept of a run's files: first copied out of the training's reach, then read.

The bytes that are hashed, compared and packed are those of the copy. Whatever becomes of the
training's own file later changes nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gate.checkpoint.digest import CAPTURED_LEAF, SAVED_LEAF
from gate.errors import EvidenceError, StorageError
from gate.evidence.one_a_rank import TrainingSpan, several_processes
from gate.evidence.processes_harness_files import MAX_NAMES
from gate.evidence.run_evidence import KeptFile, RunEvidence
from gate.evidence.state_manifest import MAX_STATE_BYTES
from gate.system.files.port import Files
from gate.text.codec_digests import sha256_hex
from gate.text.untrusted_text import plain_text
from gate.training.runs import FIRST_STRICT, SECOND_STRICT, PlannedRun

OUTPUT_FILE: Final = "output.txt"

STATE_FILE = "state.safetensors"
GRADIENTS_FILE = "gradients.safetensors"
# the first's is packed; the second's stays where it is another, to be compared number by number
FIRST_STATE, SECOND_STATE = f"{FIRST_STRICT}/{STATE_FILE}", f"{SECOND_STRICT}/{STATE_FILE}"
KEPT = {"state": STATE_FILE, "gradients": GRADIENTS_FILE}


@dataclass(frozen=True, kw_only=True, slots=True)
class CapturedFile:
    """A copy in the gate's own folder; `name` is the harness's, `kept_name` the evidence's.

    `sha256` is over the bytes as they were copied.
    """

    name: str
    kept_name: str
    path: Path
    sha256: str


def kinds_of(planned: PlannedRun) -> tuple[str, ...]:
    """Which of rank 0's files are taken (keys of `KEPT`)."""
    if planned.keep_values:
        return ("state", "gradients")
    return ("state",) if planned.label in {FIRST_STRICT, SECOND_STRICT} else ()


def ends_diverged(first: RunEvidence, second: RunEvidence) -> bool:
    """Whether rank 0 of two runs ended in two captured states."""
    return captured_digests(first) != captured_digests(second)


def captured_digests(run: RunEvidence) -> dict[str, str]:
    """SHA-256 by name, of what rank 0's capture holds."""
    return _digests_below(run, CAPTURED_LEAF)


def saved_digests(run: RunEvidence) -> dict[str, str]:
    """SHA-256 by name, of what the script saved itself."""
    return _digests_below(run, SAVED_LEAF)


def _digests_below(run: RunEvidence, leaf: re.Pattern[str]) -> dict[str, str]:
    return {
        tensor.name: tensor.sha256 for tensor in run.checkpoint.tensors if leaf.match(tensor.name)
    }


def capture_files(
    files: Files, out: Path, target: Path, kinds: tuple[str, ...]
) -> tuple[CapturedFile, ...]:
    """Copy rank 0's files of these kinds (keys of `KEPT`) from the harness's folder to `target`.

    A file that is not there is left to the reader, which says what is missing. Raises
    `EvidenceError` for a link, a pipe, a file that is too large, and for two files of one kind:
    one would be compared and the other kept.
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
        # rank 0 has the model as it is saved; other ranks' states are compared by their digests
        pattern = re.compile(rf"{kind}-r0-(0|[1-9][0-9]{{0,9}})\.safetensors\Z")
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
    """Outputs and captured files of the runs, under the digests that they had when read."""

    def __init__(self, folder: Path, files: Files) -> None:
        """`folder` is that of the evidence."""
        self._folder = folder
        self._adapter = files
        self.files: list[KeptFile] = []

    def keep_saved(self, copies: tuple[tuple[Path, KeptFile], ...]) -> None:
        """Files that the script saved; each is moved to where the package takes it from."""
        for path, kept in copies:
            self._adapter.move_file(path, self._folder / kept.name)
            self.files.append(kept)

    def keep(self, label: str, output: bytes, taken: tuple[CapturedFile, ...]) -> None:
        """What a run printed, and what was captured of it."""
        folder = self._folder / label
        self._adapter.fresh_folder(folder)
        self._adapter.write_bytes(folder / OUTPUT_FILE, output)
        digests = {OUTPUT_FILE: sha256_hex(output)}
        for captured in taken:
            # moved and not read again: these are the bytes that were hashed
            self._adapter.move_file(captured.path, folder / captured.kept_name)
            digests[captured.kept_name] = captured.sha256
        self.files += [
            KeptFile(name=f"{label}/{name}", sha256=digest) for name, digest in digests.items()
        ]

    def file(self, name: str) -> tuple[Path, str]:
        """Where a kept file lies, and the SHA-256 that it had when it was kept."""
        kept = next(kept for kept in self.files if kept.name == name)
        return self._folder / name, kept.sha256
