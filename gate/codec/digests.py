"""Digests over content: a tensor, a training state, a tree of files.

Algorithm `repro-gate-state/1`. Every field is length-prefixed (8 bytes, little-endian), so that no
two different inputs are the same byte string:

- leaf = SHA-256 of  field(dtype) field(rank) field(each dimension) data
- root = SHA-256 of  field(algorithm) and, for each tensor sorted by name, field(name) field(leaf)

`data` is the tensor's logical elements in row-major order, little-endian. Minus zero and the
payload of a NaN count, because they are bits; device, strides and file layout do not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from gate.records.evidence import CheckpointManifest, TensorDigest

STATE_ALGORITHM = "repro-gate-state/1"
Buffer = bytes | bytearray | memoryview


def field(data: bytes) -> bytes:
    """Length, then bytes."""
    return len(data).to_bytes(8, "little") + data


def sha256_hex(data: Buffer) -> str:
    """SHA-256 as 64 lowercase hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def tensor_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """What is hashed before a tensor's bytes."""
    dimensions = b"".join(field(str(size).encode("ascii")) for size in shape)
    return field(dtype.encode("ascii")) + field(str(len(shape)).encode("ascii")) + dimensions


def tensor_digest(
    name: str, dtype: str, shape: tuple[int, ...], chunks: Iterable[Buffer]
) -> TensorDigest:
    """Hash one tensor, its bytes given in order in any number of pieces."""
    hasher = hashlib.sha256(tensor_header(dtype, shape))
    for chunk in chunks:
        hasher.update(chunk)
    return TensorDigest(name=name, dtype=dtype, shape=shape, sha256=hasher.hexdigest())


def state_root(tensors: Iterable[TensorDigest]) -> str:
    """The root over all tensors; their order does not matter, their names do."""
    hasher = hashlib.sha256(field(STATE_ALGORITHM.encode("ascii")))
    for tensor in sorted(tensors, key=lambda tensor: tensor.name):
        hasher.update(field(tensor.name.encode("utf-8", "surrogatepass")))
        hasher.update(field(bytes.fromhex(tensor.sha256)))
    return hasher.hexdigest()


def state_manifest(tensors: Iterable[TensorDigest]) -> CheckpointManifest:
    """Sort the tensors and close them with their root."""
    ordered = tuple(sorted(tensors, key=lambda tensor: tensor.name))
    return CheckpointManifest(algorithm=STATE_ALGORITHM, tensors=ordered, root=state_root(ordered))


def tree_digest(entries: Iterable[tuple[str, str, str]]) -> str:
    """The digest of a tree of files given as (path, mode, SHA-256 of the content)."""
    hasher = hashlib.sha256(field(b"repro-gate-tree/1"))
    for entry in sorted(entries):
        for part in entry:
            hasher.update(field(part.encode("utf-8", "surrogateescape")))
    return hasher.hexdigest()
