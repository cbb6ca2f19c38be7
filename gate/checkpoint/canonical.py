"""The canonical form, version `repro-gate-state/2`; docs/digest.md specifies it for anyone.

Every field is its length (8 bytes, little-endian) and its bytes, so no two different inputs are
the same byte string. H is SHA-256:

- a tensor up to `CHUNK_BYTES`: H(field("tensor") field(dtype) field(dimensions) data)
- a larger one: H(field("chunks") field(dtype) field(dimensions) and field(H(chunk)) for each)
- a value: H(field("value") field(kind) data)
- a part: H(field(algorithm) field(hash) field(part) and, sorted by path, field(path) field(leaf))
- the root: H(field(algorithm) field(hash) field("state") and field(part) field(root) for each)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256

from gate.text.codec_digests import field

ALGORITHM = "repro-gate-state/2"
# part of every root, so that another hash would be another digest
HASH = "sha256"
CHUNK_BYTES = 4 * 1024 * 1024
WHOLE, CHUNKS, VALUE, STATE = b"tensor", b"chunks", b"value", b"state"


def tensor_head(tag: bytes, dtype: str, shape: tuple[int, ...]) -> bytes:
    """What is hashed before a tensor's bytes, or before the digests of its chunks."""
    dimensions = b"".join(size.to_bytes(8, "little") for size in shape)
    return field(tag) + field(dtype.encode("ascii")) + field(dimensions)


def chunked_digest(dtype: str, shape: tuple[int, ...], chunks: Iterable[bytes]) -> bytes:
    """The leaf of a tensor above `CHUNK_BYTES`, from the digests of its chunks in order."""
    return sha256(tensor_head(CHUNKS, dtype, shape) + b"".join(map(field, chunks))).digest()


def value_digest(kind: str, data: bytes) -> bytes:
    """The leaf of a plain value."""
    return sha256(field(VALUE) + field(kind.encode("ascii")) + data).digest()


def part_root(part: str, leaves: Iterable[tuple[str, bytes]]) -> bytes:
    """The root over leaves given as (path, digest); their order does not matter."""
    # as bytes: languages disagree on the order of texts beyond ASCII
    rows = sorted((path.encode("utf-8", "surrogatepass"), digest) for path, digest in leaves)
    fields = b"".join([field(path) + field(digest) for path, digest in rows])
    return sha256(_head(part.encode("ascii")) + fields).digest()


def state_root(parts: Mapping[str, bytes]) -> bytes:
    """The root over the roots of all parts, sorted by their names."""
    hasher = sha256(_head(STATE))
    for part in sorted(parts):
        hasher.update(field(part.encode("ascii")) + field(parts[part]))
    return hasher.digest()


def _head(what: bytes) -> bytes:
    return field(ALGORITHM.encode("ascii")) + field(HASH.encode("ascii")) + field(what)
