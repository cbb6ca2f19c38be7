"""`repro-gate digest`: print the digest of a checkpoint's content, in any known format.

The file is parsed in a confined child, which runs none of the code that a pickle may contain. The
child returns finished output, and the parent makes it safe for a terminal.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gate.checkpoint.completeness import Row, State, contents_of, review
from gate.checkpoint.digest import LeafDigest, StateDigest, digest_state
from gate.checkpoint.formats.file_formats import UnknownContent
from gate.checkpoint.parts import Exclusion
from gate.checkpoint.tensor_hashing import HASH
from gate.commands.program import FILES
from gate.commands.state_options import STATE_HELP, chosen_exclusions, safe_text, state_parser
from gate.errors import EvidenceError, ExitCode
from gate.isolation.confined_look import LARGE_ANSWER_BYTES, read_apart, reading_seconds
from gate.package.open_members import MAX_BYTES, is_package
from gate.package.saved_states import PackagedStates, open_package, open_saved_state
from gate.text.json_text import reviewable_json
from gate.text.plain_records import PlainForm
from gate.text.untrusted_text import safe_line

DIGEST_SCHEMA: Final = "repro-gate.digest/1"


def digest_lines(state: StateDigest, *, leaves: bool) -> list[str]:
    """Return the digests as lines; `leaves` adds a line for each leaf.

    Names, reasons and notes of the state are not escaped here. The caller passes the lines through
    `safe_text`.
    """
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
    """Return the digests as one JSON document.

    Of a package's two states the captured one is the document. The one that the script saved is in
    its key `saved`.
    """
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


def complete(rows: Sequence[Row]) -> bool:
    """Decide whether a checkpoint has every part that an exact resume needs.

    A part in an unknown state counts as missing.
    """
    return all(row.state in {State.SAVED, State.ABSENT} for row in rows)


def complete_lines(rows: Sequence[Row]) -> list[str]:
    """Return lines that say whether a training can resume exactly, and the state of each part."""
    lines = [f"complete     {'yes' if complete(rows) else 'no'}"]
    width = max(len(row.part) for row in rows)
    for row in rows:
        where = ", ".join(row.places)
        about = "; ".join(filter(None, (where, row.note)))
        state = row.state if row.state is not State.SAVED else ""
        lines.append(f"  {row.part:<{width}}  {': '.join(filter(None, (state, about)))}")
    return lines


def complete_document(rows: Sequence[Row]) -> dict[str, object]:
    """Return the facts of `complete_lines` for JSON."""
    return {
        "complete": complete(rows),
        "parts": [
            {"part": row.part, "state": row.state, "places": row.places, "note": row.note}
            for row in rows
        ],
    }


@dataclass(frozen=True, kw_only=True)
class DigestOutput:
    """What the confined child returns: a JSON document, or lines that are not yet escaped.

    `complete` is None unless `--complete` asks whether a training can resume from the state.
    """

    document: object = None
    lines: tuple[str, ...] = ()
    complete: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DigestedPath:
    """The digests of a checkpoint, or of both states in a package.

    `rows` are the parts that a resume needs; empty unless `--complete` asks for them.
    """

    states: tuple[StateDigest, ...]
    rows: tuple[Row, ...] = ()


def run(words: Sequence[str]) -> None:
    """Print the digest of a checkpoint's content.

    The same for every format; no code in the file is run. With --complete, exit code 1 when a
    training could not go on exactly from the checkpoint.

    Example: repro-gate digest checkpoint.pt --leaves
    """
    asked = _parser().parse_args(words)
    exclusions = chosen_exclusions(asked.exclude, defaults=not asked.no_default_exclusions)

    def look() -> DigestOutput:
        if is_package(FILES, asked.path):
            with open_package(FILES, asked.path) as package:
                # Only the caller's rules: the captured state is digested whole, as it was sealed.
                # For the saved one `saved_exclusions` adds the rules of the package.
                rules = chosen_exclusions(asked.exclude, defaults=False)
                answer = _of_package(package, rules, complete=asked.complete)
        else:
            with open_saved_state(FILES, asked.path, UnknownContent(asked.unknown)) as content:
                state = digest_state(content, exclusions=exclusions, max_bytes=MAX_BYTES)
                rows = review(contents_of(content)) if asked.complete else ()
                answer = DigestedPath(states=(state,), rows=rows)
        return _output(answer, json=asked.json, leaves=asked.leaves)

    digested = read_apart(
        PlainForm(DigestOutput),
        look,
        what=safe_line(str(asked.path)),
        seconds=reading_seconds(asked.path),
        answer_bytes=LARGE_ANSWER_BYTES,
    )
    sys.stdout.write(
        reviewable_json(digested.document) if asked.json else safe_text(digested.lines)
    )
    if digested.complete is False:
        raise SystemExit(int(ExitCode.FAIL))


def _output(digested: DigestedPath, *, json: bool, leaves: bool) -> DigestOutput:
    answer = complete(digested.rows) if digested.rows else None
    if json:
        document = digest_document(digested.states, leaves=leaves)
        if digested.rows:
            document["resume"] = complete_document(digested.rows)
        return DigestOutput(document=document, complete=answer)
    texts = [digest_lines(state, leaves=leaves) for state in digested.states]
    if digested.rows:
        texts.append(complete_lines(digested.rows))
    lines = tuple(line for text in texts for line in (*text, ""))[:-1]
    return DigestOutput(lines=lines, complete=answer)


def _of_package(
    package: PackagedStates, exclusions: Sequence[Exclusion], *, complete: bool
) -> DigestedPath:
    """Digest both states of a package, as its seal names them: captured by the gate, and saved.

    Raises `EvidenceError` if `complete` is set and the package has no state that the script saved.
    """
    captured = digest_state(package.captured(), exclusions=exclusions, max_bytes=MAX_BYTES)
    if not package.saved_member:
        if complete:
            raise EvidenceError(
                "the package contains no checkpoint that the script saved",
                hint="Set train.checkpoint, or name the checkpoint itself.",
            )
        return DigestedPath(states=(captured,))
    rules = (*exclusions, *package.saved_exclusions())
    content = package.saved()
    saved = digest_state(content, exclusions=rules, max_bytes=MAX_BYTES)
    return DigestedPath(
        states=(captured, saved), rows=review(contents_of(content)) if complete else ()
    )


def _parser() -> ArgumentParser:
    parser = state_parser("digest", run.__doc__)
    parser.add_argument("path", type=Path, help=STATE_HELP)
    parser.add_argument("--leaves", action="store_true", help="also list every leaf")
    parser.add_argument(
        "--complete",
        action="store_true",
        help="also list what a resume needs; exit code 1 when something is missing",
    )
    return parser
