"""What `repro-gate digest` and `repro-gate diff` share; quick to import."""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from inspect import cleandoc

from gate.checkpoint.formats.file_formats import UnknownContent
from gate.checkpoint.parts import DEFAULT_EXCLUSIONS, Exclusion
from gate.errors import SettingsError
from gate.text.untrusted_text import safe_line

SAFE_LINE_CHARACTERS = 4000
STATE_HELP = "a checkpoint in any known format, or a package.tar"
EXCLUDE_HELP = (
    "exclude leaves, with a reason; * matches within one key of a path, ** across keys; repeatable"
)


def state_parser(verb: str, description: str | None) -> ArgumentParser:
    """A parser with the options that both verbs have."""
    parser = ArgumentParser(
        prog=f"repro-gate {verb}",
        description=cleandoc(description or ""),
        formatter_class=RawDescriptionHelpFormatter,
        # what is an abbreviation today may be two options tomorrow
        allow_abbrev=False,
    )
    parser.add_argument(
        "--exclude", metavar="GLOB=REASON", action="append", default=[], help=EXCLUDE_HELP
    )
    parser.add_argument(
        "--no-default-exclusions",
        action="store_true",
        help="also compare the paths, times and versions that a checkpoint holds",
    )
    parser.add_argument(
        "--unknown",
        choices=[policy.value for policy in UnknownContent],
        default=UnknownContent.REFUSE.value,
        help="what to do with files of an unknown format; default: refuse",
    )
    parser.add_argument("--json", action="store_true", help="print the document as JSON on stdout")
    return parser


def chosen_exclusions(rules: Sequence[str], *, defaults: bool) -> tuple[Exclusion, ...]:
    """The caller's exclusions, then ours; `SettingsError` for a rule without pattern or reason."""
    own = tuple(map(_exclusion, rules))
    return (*own, *DEFAULT_EXCLUSIONS) if defaults else own


def _exclusion(rule: str) -> Exclusion:
    pattern, _, reason = rule.partition("=")
    if not pattern.strip() or not reason.strip():
        raise SettingsError(
            f"--exclude {safe_line(rule)!r} needs a pattern and a reason",
            hint="For example: --exclude '/step_seconds/**=measured times'",
        )
    return Exclusion(pattern=pattern.strip(), reason=reason.strip())


def safe_text(lines: Sequence[str]) -> str:
    """Lines about a state for a terminal: its author chose the names in it."""
    return "".join(f"{safe_line(line, limit=SAFE_LINE_CHARACTERS)}\n" for line in lines)
