"""The digest of a saved state as text and as a document; quick to import."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gate.checkpoint.canonical import HASH
from gate.checkpoint.digest import LeafDigest, StateDigest

DIGEST_SCHEMA: Final = "repro-gate.digest/1"


def digest_lines(state: StateDigest, *, leaves: bool) -> list[str]:
    """Lines for a terminal; what the state says is in them as it is, the caller makes it safe."""
    lines = [
        f"algorithm    {state.algorithm}",
        f"hash         {HASH}",
        f"format       {state.format}",
        f"root         {state.roots.whole}",
    ]
    counts = _counts(state)
    lines += [
        f"  {part:<10} {root}  {_count(counts[part], 'leaf', 'leaves')}"
        for part, root in state.roots.parts.items()
    ]
    lines += [
        f"left out     {_count(rule.leaves, 'leaf', 'leaves')} by {rule.pattern}: {rule.reason}"
        for rule in state.excluded
    ]
    lines += [f"note         {note}" for note in state.notes]
    if leaves:
        lines += [
            "",
            # digest first, as `sha256sum` prints it: two lists can be compared line by line
            *(f"{leaf.digest.hex()}  {_kind(leaf)}  {leaf.path}" for leaf in state.leaves),
        ]
    return lines


def digest_document(states: Sequence[StateDigest], *, leaves: bool) -> dict[str, object]:
    """The same as one JSON document; what else a package holds stands in `saved`."""
    document, *others = (_state_document(state, leaves=leaves) for state in states)
    return {**document, "saved": others[0]} if others else document


def _state_document(state: StateDigest, *, leaves: bool) -> dict[str, object]:
    document: dict[str, object] = {
        "schema_version": DIGEST_SCHEMA,
        "algorithm": state.algorithm,
        "hash": HASH,
        "format": state.format,
        "root": state.roots.whole,
        "parts": state.roots.parts,
        "counts": _counts(state),
        "excluded": [
            {"pattern": rule.pattern, "reason": rule.reason, "leaves": rule.leaves}
            for rule in state.excluded
        ],
        "notes": state.notes,
    }
    if leaves:
        document["leaves"] = [_leaf_document(leaf) for leaf in state.leaves]
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


def _counts(state: StateDigest) -> dict[str, int]:
    counts = dict.fromkeys(state.roots.parts, 0)
    for leaf in state.leaves:
        counts[leaf.part] += 1
    return counts


def _kind(leaf: LeafDigest) -> str:
    return leaf.kind if leaf.shape is None else f"{leaf.kind}{list(leaf.shape)}"


def _count(number: int, singular: str, plural: str) -> str:
    return f"{number:,} {singular if number == 1 else plural}"
