"""Digests of a checkpoint that the training script saved itself; torch is not needed.

Read are `torch.save` archives and safetensors files, told apart by their content, not their name.
"""

from __future__ import annotations

from pathlib import Path

from gate.errors import EvidenceError
from gate.evidence.hostile_file import open_hostile
from gate.evidence.safetensors_reader import read_safetensors
from gate.evidence.state_tree import text_part
from gate.evidence.torch_archive import SAVE_HINT, CheckpointContent, read_torch_archive
from gate.ports import Files
from gate.records.evidence import TensorDigest

MAX_FILE_BYTES = 64 * 1024**3
HEAD_BYTES = 14
# `torch.save(..., _use_new_zipfile_serialization=False)` starts with this number as a pickle.
LEGACY_HEAD = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
ZIP_HEAD = b"PK\x03\x04"


def read_checkpoint(files: Files, path: Path, shown: str) -> CheckpointContent:
    """Digest every leaf of a saved state; names start with `checkpoint`.

    Raises `EvidenceError` naming the file and what is wrong with it.
    """
    if not files.exists(path):
        raise EvidenceError(
            f"{shown}: the script left no checkpoint there",
            hint="Check train.checkpoint; the path is relative to train.workdir. A script that "
            "saves only at its end does not get there when max_steps stops it earlier.",
        )
    with open_hostile(files, path, shown, max_bytes=MAX_FILE_BYTES) as opened:
        head = opened.read_at(0, min(HEAD_BYTES, opened.size_bytes))
        if head == LEGACY_HEAD:
            raise opened.fault("the legacy (non-zip) torch format is not read", hint=SAVE_HINT)
        if head.startswith(ZIP_HEAD):
            return read_torch_archive(opened)
        if head[8:9] == b"{":
            return CheckpointContent(tensors=tuple(map(_flat_name, read_safetensors(opened))))
        raise opened.fault("is no torch.save archive and no safetensors file", hint=SAVE_HINT)


def _flat_name(tensor: TensorDigest) -> TensorDigest:
    """The name that this key of a flat dictionary has in a torch archive."""
    return tensor.model_copy(update={"name": f"checkpoint{text_part(tensor.name)}"})
