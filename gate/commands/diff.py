"""`repro-gate diff`: list the leaves in which two checkpoints differ, and by how much.

Both files are parsed in one confined child, which runs none of the code that a pickle may contain.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from gate.checkpoint.formats.file_formats import UnknownContent
from gate.commands.program import FILES
from gate.commands.state_options import STATE_HELP, chosen_exclusions, state_parser
from gate.comparison.state_difference import StateDifference
from gate.comparison.states import compare_states
from gate.errors import ExitCode, SettingsError
from gate.isolation.confined_look import LARGE_ANSWER_BYTES, read_apart, reading_seconds
from gate.package.open_members import MAX_BYTES
from gate.package.saved_states import open_saved_state
from gate.report.difference_words import difference_document
from gate.text.json_text import reviewable_json
from gate.text.plain_records import PlainForm
from gate.text.untrusted_text import safe_line

SHOWN_ROWS = 20


def run(words: Sequence[str]) -> None:
    """Compare two checkpoints leaf by leaf.

    They may be in different formats. Exit code 1 when they differ.

    Example: repro-gate diff before.pt after.pt --html difference.html
    """
    asked = _parser().parse_args(words)
    if asked.limit < 1:
        raise SettingsError("--limit must be at least 1", hint="Leave it out for 20 rows.")
    exclusions = chosen_exclusions(asked.exclude, defaults=not asked.no_default_exclusions)
    unknown = UnknownContent(asked.unknown)

    def look() -> StateDifference:
        with (
            open_saved_state(FILES, asked.a, unknown) as left,
            open_saved_state(FILES, asked.b, unknown) as right,
        ):
            return compare_states(left, right, exclusions=exclusions, max_bytes=MAX_BYTES)

    answer = read_apart(
        PlainForm(StateDifference),
        look,
        what=safe_line(f"{asked.a}, compared with {asked.b},"),
        seconds=reading_seconds(asked.a, asked.b),
        answer_bytes=LARGE_ANSWER_BYTES,
    )
    if asked.html is not None:
        _write_page(answer, asked.html)
    if asked.json:
        sys.stdout.write(reviewable_json(difference_document(answer)))
    else:
        _show(answer, asked.limit)
    # the exit codes of diff(1), so that a script can use this command in the same way
    raise SystemExit(int(ExitCode.PASS if answer.equal else ExitCode.FAIL))


def _parser() -> ArgumentParser:
    parser = state_parser("diff", run.__doc__)
    parser.add_argument("a", type=Path, metavar="A", help=STATE_HELP)
    parser.add_argument("b", type=Path, metavar="B", help="the checkpoint to compare it with")
    parser.add_argument(
        "--limit",
        type=int,
        default=SHOWN_ROWS,
        metavar="N",
        help=f"rows of each kind on the terminal, default: {SHOWN_ROWS}; JSON has all of them",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write an HTML page")
    return parser


def _write_page(difference: StateDifference, path: Path) -> None:
    # imported here because the template engine is slow to import
    from gate.report.page.templates import difference_page  # noqa: PLC0415

    FILES.write_bytes(path, difference_page(difference).encode("utf-8"))


def _show(difference: StateDifference, limit: int) -> None:
    # imported here because rich is slow to import, and JSON output does not need it
    from rich.console import Console  # noqa: PLC0415

    from gate.report.terminal_lines import difference_view  # noqa: PLC0415
    from gate.system.console import wide_enough  # noqa: PLC0415

    console = wide_enough(Console(highlight=False, markup=False, emoji=False))
    console.print(difference_view(difference, limit))
