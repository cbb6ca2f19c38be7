"""The digest of a saved state as text and as a document; quick to import."""

from __future__ import annotations

from typing import Final

from gate.checkpoint.digest import LeafDigest, StateDigest
from gate.checkpoint.hashing.canonical import HASH

DIGEST_SCHEMA: Final = "repro-gate.digest/1"


def digest_lines(found: StateDigest, *, leaves: bool) -> list[str]:
    """Lines for a terminal; what the state says is in them as it is, the caller makes it safe."""
    lines = [
        f"algorithm    {found.algorithm}",
        f"hash         {HASH}",
        f"format       {found.format}",
        f"root         {found.roots.whole}",
    ]
    counts = _counts(found)
    lines += [
        f"  {part:<10} {root}  {_count(counts[part], 'leaf', 'leaves')}"
        for part, root in found.roots.parts.items()
    ]
    lines += [
        f"left out     {_count(rule.leaves, 'leaf', 'leaves')} by {rule.pattern}: {rule.reason}"
        for rule in found.excluded
    ]
    lines += [f"note         {note}" for note in found.notes]
    if leaves:
        lines += [
            "",
            # digest first, as `sha256sum` prints it: two lists can be compared line by line
            *(f"{leaf.digest.hex()}  {_kind(leaf)}  {leaf.path}" for leaf in found.leaves),
        ]
    return lines


def digest_document(found: StateDigest, *, leaves: bool) -> dict[str, object]:
    """The same as one JSON document."""
    document: dict[str, object] = {
        "schema_version": DIGEST_SCHEMA,
        "algorithm": found.algorithm,
        "hash": HASH,
        "format": found.format,
        "root": found.roots.whole,
        "parts": found.roots.parts,
        "counts": _counts(found),
        "excluded": [
            {"pattern": rule.pattern, "reason": rule.reason, "leaves": rule.leaves}
            for rule in found.excluded
        ],
        "notes": found.notes,
    }
    if leaves:
        document["leaves"] = [_leaf_document(leaf) for leaf in found.leaves]
    return document


def _leaf_document(leaf: LeafDigest) -> dict[str, object]:
    return {
        "path": leaf.path,
        "part": leaf.part,
        "kind": leaf.kind,
        "shape": leaf.shape,
        "size_bytes": leaf.size_bytes,
        "digest": leaf.digest.hex(),
    }


def _counts(found: StateDigest) -> dict[str, int]:
    counts = dict.fromkeys(found.roots.parts, 0)
    for leaf in found.leaves:
        counts[leaf.part] += 1
    return counts


def _kind(leaf: LeafDigest) -> str:
    return leaf.kind if leaf.shape is None else f"{leaf.kind}{list(leaf.shape)}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
