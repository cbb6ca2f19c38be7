"""`repro-gate digest`: the digest of a saved state, whatever its format."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gate.checkpoint.digest import StateDigest, digest_state
from gate.checkpoint.exclusions import Exclusion
from gate.checkpoint.formats.file_formats import UnknownContent
from gate.commands.digest_view import digest_document, digest_lines
from gate.commands.program import FILES
from gate.commands.state_options import STATE_HELP, chosen_exclusions, safe_text, state_parser
from gate.isolation.confined_look import LARGE_ANSWER_BYTES, read_apart, reading_seconds
from gate.package.pipelines_saved_states import open_saved_state
from gate.package.saved_states import MAX_BYTES, PackagedStates, is_package, open_package
from gate.text.json_text import reviewable_json
from gate.text.plain_records import PlainForm
from gate.text.untrusted_text import safe_line


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
