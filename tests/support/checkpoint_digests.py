"""Digests of checkpoints for tests, through the room's own entry."""

from __future__ import annotations

from pathlib import Path

from gate.codec.digests import state_root
from gate.edges.files import LocalFiles
from gate.evidence.checkpoint_reader import read_checkpoint
from gate.evidence.torch_archive import CheckpointContent


def content_of(path: Path) -> CheckpointContent:
    return read_checkpoint(LocalFiles(), path, path.name)


def root_of(path: Path) -> str:
    return state_root(content_of(path).tensors)


def leaves_of(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {item.name: (item.dtype, item.shape) for item in content_of(path).tensors}
