"""The digest of a whole state: a digest for every leaf, a root for each part, and one over all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from gate.checkpoint.leaves import RAW_DTYPE, Leaf, StateContent, TensorLeaf
from gate.checkpoint.parts import (
    DEFAULT_EXCLUSIONS,
    MODEL,
    PARTS,
    Excluded,
    Exclusion,
    part_of,
    without_excluded,
)
from gate.checkpoint.tensor_hashing import (
    ALGORITHM,
    available_threads,
    digest_leaves,
    gc_paused,
    part_root,
    state_root,
)
from gate.errors import EvidenceError
from gate.text.untrusted_text import short_text

MAX_LEAVES = 1_000_000
FEWER_LEAVES = "Save fewer and larger tensors; put a long list of numbers into one."
SAVE_AGAIN = "No known program writes such a file: save the state again."
# A manifest lists the leaves of several states: what the gate captured on rank 0, and what the
# script saved. Each state has a prefix, which the paths in its own file do not have.
CAPTURED: Final = "state"
SAVED: Final = "checkpoint"
# match the prefix of a captured leaf and of a saved leaf
CAPTURED_LEAF: Final = re.compile(rf"{CAPTURED}(?=[^A-Za-z0-9_.-]|\Z)")
SAVED_LEAF: Final = re.compile(rf"{SAVED}(?=[^A-Za-z0-9_.-]|\Z)")
# the prefix before a leaf's own path, whose keys decide the part
PREFIX: Final = re.compile(r"^(?:state(?:\.rank\d+)?|checkpoint)(?=[^A-Za-z0-9_.-]|\Z)")


class LeafDigest(NamedTuple):
    """The digest of one leaf.

    `kind` is a tensor's dtype or a value's kind. A value has no shape.
    """

    path: str
    part: str
    kind: str
    shape: tuple[int, ...] | None
    size_bytes: int
    digest: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Roots:
    """The root over everything and the root of each part, in hexadecimal."""

    whole: str
    parts: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class StateDigest:
    """The result that `repro-gate digest` prints; leaves are sorted by path."""

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
    """Return the digest of every leaf that no exclusion leaves out.

    `max_bytes` limits the bytes of all tensors together as they are hashed: a small file can
    describe huge views. Raises `EvidenceError` if this limit is exceeded, if a path occurs twice,
    and if the bytes cannot be read.
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
    """Return the roots over leaves with distinct paths."""
    by_part: dict[str, list[tuple[str, bytes]]] = {part: [] for part in PARTS}
    for path, part, _, _, _, digest in leaves:
        by_part[part].append((path, digest))
    parts = {part: part_root(part, rows) for part, rows in by_part.items()}
    return Roots(
        whole=state_root(parts).hex(),
        parts={part: root.hex() for part, root in parts.items()},
    )


class ListedLeaf(Protocol):
    """A leaf as a manifest lists it."""

    @property
    def name(self) -> str:
        """The prefix and the path of the leaf."""
        ...

    @property
    def dtype(self) -> str:
        """The dtype of a tensor, or the kind of a value."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a tensor; a value has an empty one."""
        ...

    @property
    def sha256(self) -> str:
        """The digest of the leaf in hexadecimal."""
        ...


def captured_digest(listed: Iterable[ListedLeaf]) -> str:
    """Return the one digest that people are shown for a state, or an empty text without a state.

    `repro-gate digest package.tar` prints this digest first. The manifest's own root covers every
    rank and the saved state too. No file has that digest, so nobody could find a state by it.
    """
    roots = roots_below(listed, CAPTURED_LEAF)
    return "" if roots is None else roots.whole


def roots_below(listed: Iterable[ListedLeaf], prefix: re.Pattern[str]) -> Roots | None:
    """Return the roots of the leaves under a prefix, which is removed, or None without any leaf."""
    leaves = [
        _listed(prefix.sub("", leaf.name, count=1), leaf)
        for leaf in listed
        if prefix.match(leaf.name)
    ]
    if not leaves:
        return None
    # Without the prefix the order changes: the first character after it decides, and `/` sorts
    # before `[`.
    return roots_of(sorted(leaves, key=attrgetter("path")))


def roots_of_listed(listed: Iterable[ListedLeaf]) -> Roots:
    """Return the roots over every leaf of a manifest, under the names in the manifest."""
    return roots_of(_listed(leaf.name, leaf) for leaf in listed)


def is_weight(name: str, dtype: str) -> bool:
    """Return whether a leaf of a manifest is a weight or a buffer of a model."""
    is_tensor = dtype[:1].isupper() and dtype != RAW_DTYPE
    return is_tensor and part_of(PREFIX.sub("", name), dtype, tensor=True) == MODEL


def _listed(path: str, leaf: ListedLeaf) -> LeafDigest:
    is_tensor = leaf.dtype[:1].isupper() and leaf.dtype != RAW_DTYPE
    return LeafDigest(
        path=path,
        part=part_of(PREFIX.sub("", leaf.name), leaf.dtype, tensor=is_tensor),
        kind=leaf.dtype,
        shape=leaf.shape,
        size_bytes=0,
        digest=bytes.fromhex(leaf.sha256),
    )


def check_leaves(shown: str, leaves: Sequence[Leaf], max_bytes: int | None) -> None:
    """Refuse too many leaves, a path that occurs twice, and tensors that are too large together.

    The leaves must be sorted by path.
    """
    if len(leaves) > MAX_LEAVES:
        raise EvidenceError(
            f"{shown}: more than {MAX_LEAVES:,} tensors and values", hint=FEWER_LEAVES
        )
    before = None
    total = 0
    for leaf in leaves:
        if leaf.path == before:
            raise EvidenceError(f"{shown}: {short_text(leaf.path)} occurs twice", hint=SAVE_AGAIN)
        before = leaf.path
        if isinstance(leaf, TensorLeaf):
            # Count the elements that are hashed: an expanded view of a single element may be a
            # terabyte.
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
