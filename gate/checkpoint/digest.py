"""The digest of a whole state: every leaf, the root of each part, and the root over all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from gate.checkpoint.dtypes import RAW_DTYPE
from gate.checkpoint.exclusions import (
    DEFAULT_EXCLUSIONS,
    Excluded,
    Exclusion,
    without_excluded,
)
from gate.checkpoint.hashing.canonical import ALGORITHM, part_root, state_root
from gate.checkpoint.hashing.gc_pause import gc_paused
from gate.checkpoint.hashing.tensors import available_threads, digest_leaves
from gate.checkpoint.leaves import Leaf, StateContent, TensorLeaf
from gate.checkpoint.parts import PARTS, part_of
from gate.codec.untrusted_text import short_text
from gate.errors import EvidenceError

MAX_LEAVES = 1_000_000


class LeafDigest(NamedTuple):
    """One leaf: `kind` is a tensor's dtype or a value's kind; a value has no shape."""

    path: str
    part: str
    kind: str
    shape: tuple[int, ...] | None
    size_bytes: int
    digest: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Roots:
    """The root over everything and that of each part, as hexadecimal."""

    whole: str
    parts: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class StateDigest:
    """What `repro-gate digest` prints; leaves are sorted by path."""

    algorithm: str
    format: str
    roots: Roots
    leaves: tuple[LeafDigest, ...]
    excluded: tuple[Excluded, ...]
    notes: tuple[str, ...]


def digest_state(
    content: StateContent,
    *,
    exclusions: Sequence[Exclusion] = DEFAULT_EXCLUSIONS,
    threads: int | None = None,
    max_bytes: int | None = None,
) -> StateDigest:
    """Digest every leaf that no exclusion takes out.

    `max_bytes` bounds the logical bytes of all tensors together, since a small file can describe
    huge views. Raises `EvidenceError` for that, for a path that occurs twice, and for whatever is
    wrong with the bytes.
    """
    with gc_paused():
        kept, excluded = without_excluded(content.leaves, exclusions)
        kept.sort(key=attrgetter("path"))
        check_leaves(content.shown, kept, max_bytes)
        digests = digest_leaves(kept, threads or available_threads())
        leaves = tuple(map(_digested, kept, digests))
        roots = roots_of(leaves)
    return StateDigest(
        algorithm=ALGORITHM,
        format=content.format,
        roots=roots,
        leaves=leaves,
        excluded=excluded,
        notes=content.notes,
    )


def roots_of(leaves: Iterable[LeafDigest]) -> Roots:
    """The roots over any leaves with distinct paths."""
    by_part: dict[str, list[tuple[str, bytes]]] = {part: [] for part in PARTS}
    for path, part, _, _, _, digest in leaves:
        by_part[part].append((path, digest))
    parts = {part: part_root(part, rows) for part, rows in by_part.items()}
    return Roots(
        whole=state_root(parts).hex(),
        parts={part: root.hex() for part, root in parts.items()},
    )


def check_leaves(shown: str, leaves: Sequence[Leaf], max_bytes: int | None) -> None:
    """Refuse too many leaves, a path that occurs twice (they are sorted), too many bytes."""
    if len(leaves) > MAX_LEAVES:
        raise EvidenceError(f"{shown}: more than {MAX_LEAVES:,} tensors and values")
    before = None
    total = 0
    for leaf in leaves:
        if leaf.path == before:
            raise EvidenceError(f"{shown}: {short_text(leaf.path)} occurs twice")
        before = leaf.path
        if isinstance(leaf, TensorLeaf):
            # the logical bytes: an expanded view of one element may be a terabyte to hash
            total += leaf.source.size_bytes
    if max_bytes is not None and total > max_bytes:
        raise EvidenceError(
            f"{shown}: all tensors together exceed {max_bytes:,} bytes",
            hint="Save clones instead of expanded views.",
        )


def _digested(leaf: Leaf, digest: bytes) -> LeafDigest:
    if isinstance(leaf, TensorLeaf):
        path, dtype, shape, source = leaf
        part = part_of(path, dtype, tensor=dtype != RAW_DTYPE)
        return LeafDigest(path, part, dtype, shape, source.size_bytes, digest)
    part = part_of(leaf.path, leaf.kind, tensor=False)
    return LeafDigest(leaf.path, part, leaf.kind, None, len(leaf.data), digest)
