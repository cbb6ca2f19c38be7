"""Digests of checkpoints for tests, through the package's public functions."""

from __future__ import annotations

import hashlib
from pathlib import Path

from gate.checkpoint.digest import StateDigest, digest_state
from gate.checkpoint.formats.formats import open_state
from gate.checkpoint.tensor_hashing import WHOLE, tensor_head
from gate.system.files.files import LocalFiles

MAX_BYTES = 64 * 1024**3


def content_of(path: Path, *, max_bytes: int = MAX_BYTES) -> StateDigest:
    with open_state(LocalFiles(), path, path.name, max_bytes=MAX_BYTES) as content:
        return digest_state(content, max_bytes=max_bytes)


def root_of(path: Path) -> str:
    return content_of(path).roots.whole


def leaves_of(path: Path) -> dict[str, tuple[str, tuple[int, ...] | None]]:
    return {leaf.path: (leaf.kind, leaf.shape) for leaf in content_of(path).leaves}


def digests_of(path: Path) -> dict[str, bytes]:
    return {leaf.path: leaf.digest for leaf in content_of(path).leaves}


def small_tensor(dtype: str, shape: tuple[int, ...], data: bytes) -> bytes:
    """Return the digest of a tensor smaller than a chunk, written from docs/digest.md."""
    return hashlib.sha256(tensor_head(WHOLE, dtype, shape) + data).digest()
