"""The options that `repro-gate digest` and `repro-gate diff` share.

These verbs parse their arguments with argparse: importing typer takes as long as reading a
gigabyte (`gate/cli.py`). Keep the imports of this module light.
"""

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
    """Return a parser with the options of both verbs; `description` is the help's text."""
    parser = ArgumentParser(
        prog=f"repro-gate {verb}",
        description=cleandoc(description or ""),
        formatter_class=RawDescriptionHelpFormatter,
        # an abbreviation that works today would become ambiguous with the next option
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
    """Return the caller's exclusions, followed by the default ones if `defaults` is set.

    Raises `SettingsError` for a rule without a pattern or a reason.
    """
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
    """Escape lines for a terminal: the author of the checkpoint chose the names in them."""
    return "".join(f"{safe_line(line, limit=SAFE_LINE_CHARACTERS)}\n" for line in lines)
