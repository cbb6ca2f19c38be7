"""`repro-gate digest`: the digest of a saved state, whatever its format."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gate.checkpoint.digest import LeafDigest, StateDigest, digest_state
from gate.checkpoint.formats.file_formats import UnknownContent
from gate.checkpoint.parts import Exclusion
from gate.checkpoint.tensor_hashing import HASH
from gate.commands.program import FILES
from gate.commands.state_options import STATE_HELP, chosen_exclusions, safe_text, state_parser
from gate.isolation.confined_look import LARGE_ANSWER_BYTES, read_apart, reading_seconds
from gate.package.saved_states import (
    MAX_BYTES,
    PackagedStates,
    is_package,
    open_package,
    open_saved_state,
)
from gate.text.json_text import reviewable_json
from gate.text.plain_records import PlainForm
from gate.text.untrusted_text import safe_line

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


@dataclass(frozen=True, kw_only=True)
class Told:
    """The digests as they are printed: one document, or lines that are still to be made safe."""

    document: object = None
    lines: tuple[str, ...] = ()


def run(words: Sequence[str]) -> None:
    """Print the digest of a checkpoint's content.

    The same for every format; no code in the file is run.

    Example: repro-gate digest checkpoint.pt --leaves
    """
    asked = _parser().parse_args(words)
    exclusions = chosen_exclusions(asked.exclude, defaults=not asked.no_default_exclusions)

    def look() -> Told:
        if is_package(FILES, asked.path):
            with open_package(FILES, asked.path) as package:
                found = _of_package(package, chosen_exclusions(asked.exclude, defaults=False))
        else:
            with open_saved_state(FILES, asked.path, UnknownContent(asked.unknown)) as content:
                found = (digest_state(content, exclusions=exclusions, max_bytes=MAX_BYTES),)
        if asked.json:
            return Told(document=digest_document(found, leaves=asked.leaves))
        lines = (digest_lines(state, leaves=asked.leaves) for state in found)
        return Told(lines=tuple(line for state in lines for line in (*state, ""))[:-1])

    told = read_apart(
        PlainForm(Told),
        look,
        what=safe_line(str(asked.path)),
        seconds=reading_seconds(asked.path),
        answer_bytes=LARGE_ANSWER_BYTES,
    )
    sys.stdout.write(reviewable_json(told.document) if asked.json else safe_text(told.lines))


def _of_package(
    package: PackagedStates, exclusions: Sequence[Exclusion]
) -> tuple[StateDigest, ...]:
    """The roots that the seal names: of what the gate captured, and of what the script saved."""
    captured = digest_state(package.captured(), exclusions=exclusions, max_bytes=MAX_BYTES)
    if not package.saved_member:
        return (captured,)
    rules = (*exclusions, *package.saved_exclusions())
    return (captured, digest_state(package.saved(), exclusions=rules, max_bytes=MAX_BYTES))


def _parser() -> ArgumentParser:
    parser = state_parser("digest", run.__doc__)
    parser.add_argument("path", type=Path, help=STATE_HELP)
    parser.add_argument("--leaves", action="store_true", help="also list every leaf")
    return parser
