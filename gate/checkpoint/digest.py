"""The digest of a whole state: every leaf, the root of each part, and the root over all."""

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
FEWER_LEAVES = "Save fewer and larger tensors; long lists of numbers belong into one."
SAVE_AGAIN = "No known program writes such a file: save the state again."
# A manifest lists the leaves of several states, each under a prefix that its own file does not
# have: what the gate captured on rank 0, and what the script saved.
CAPTURED: Final = "state"
SAVED: Final = "checkpoint"
# a leaf of either, by what stands before its own path
CAPTURED_LEAF: Final = re.compile(rf"{CAPTURED}(?=[^A-Za-z0-9_.-]|\Z)")
SAVED_LEAF: Final = re.compile(rf"{SAVED}(?=[^A-Za-z0-9_.-]|\Z)")
# what stands before a leaf's own path, by which its part is told
PREFIX: Final = re.compile(r"^(?:state(?:\.rank\d+)?|checkpoint)(?=[^A-Za-z0-9_.-]|\Z)")


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


class ListedLeaf(Protocol):
    """A leaf as a manifest lists it."""

    @property
    def name(self) -> str:
        """Prefix and path."""
        ...

    @property
    def dtype(self) -> str:
        """The type of a tensor, the kind of a value."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a tensor."""
        ...

    @property
    def sha256(self) -> str:
        """The digest of the leaf."""
        ...


def captured_digest(listed: Iterable[ListedLeaf]) -> str:
    """The one number that people are shown for a state; empty where nothing was captured.

    `repro-gate digest package.tar` prints it first. A manifest's own root, over every rank and what
    the script saved too, is that of no file, so nobody could find a state by it.
    """
    roots = roots_below(listed, CAPTURED_LEAF)
    return "" if roots is None else roots.whole


def roots_below(listed: Iterable[ListedLeaf], prefix: re.Pattern[str]) -> Roots | None:
    """The roots of the leaves under a prefix, which is cut off; None where there are none."""
    leaves = [
        _listed(prefix.sub("", leaf.name, count=1), leaf)
        for leaf in listed
        if prefix.match(leaf.name)
    ]
    if not leaves:
        return None
    # without the prefix another character decides: `/` sorts before `[`
    return roots_of(sorted(leaves, key=attrgetter("path")))


def roots_of_listed(listed: Iterable[ListedLeaf]) -> Roots:
    """The roots over every leaf of a manifest, under the names that it has there."""
    return roots_of(_listed(leaf.name, leaf) for leaf in listed)


def is_weight(name: str, dtype: str) -> bool:
    """Whether a leaf of a manifest is a weight or a buffer of a model."""
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
    """Refuse too many leaves, a path that occurs twice (they are sorted), too many bytes."""
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
