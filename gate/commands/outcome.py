"""Print a delivered verdict on the terminal."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Final

from gate.commands.options import console
from gate.commands.program import FILES
from gate.pipelines.delivery import DeliveredVerdict
from gate.report.terminal import next_text, quiet_line, verdict_view
from gate.system.output_streams import unwritten
from gate.text.documents import write_document
from gate.text.untrusted_text import safe_block, safe_line

# in the order in which somebody opens them; the rest is for the workflow
TO_OPEN: Final = (
    "report.html",
    "verdict.json",
    "proposed-baseline.json",
    "package.tar",
    "evidence",
)


def print_outcome(outcome: DeliveredVerdict, *, as_json: bool, quiet: bool = False) -> None:
    """Print the verdict for a person, or as JSON; `quiet` prints one line.

    If standard output cannot be written, a note goes to standard error and the verdict's exit code
    stays: the verdict has been delivered to files already.
    """
    try:
        _print_outcome(outcome, as_json=as_json, quiet=quiet)
        sys.stdout.flush()
    except OSError:
        fault = unwritten(after_fault=True)
        if fault is None:
            raise
        with suppress(OSError):
            sys.stderr.write(
                f"note: {fault.message}; the verdict is in {safe_line(str(outcome.out))}\n"
            )


def _print_outcome(outcome: DeliveredVerdict, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        sys.stdout.write(write_document(outcome.verdict).decode("utf-8"))
        return
    if outcome.fault is not None:
        sys.stderr.write(f"error: {safe_block(str(outcome.fault))}\n")
        sys.stderr.write("".join(f"{safe_block(sentence)}\n" for sentence in outcome.kept))
        return
    out = console()
    if quiet:
        out.print(quiet_line(outcome.verdict), soft_wrap=True)
        return
    out.print(verdict_view(outcome.verdict, outcome.reports.links), crop=False)
    steps = next_text(outcome.verdict, outcome.reports.links)
    if steps:
        out.print(steps, soft_wrap=True)
    names = set(FILES.list_names(outcome.out, max_names=1000))
    shown = ", ".join(name for name in TO_OPEN if name in names)
    out.print(f"\nWritten to {outcome.out}: {shown}", style="dim", soft_wrap=True)
    if outcome.sealing.why_not:
        out.print(f"Not sealed: {outcome.sealing.why_not}.", style="dim", soft_wrap=True)
    for sentence in outcome.kept:
        out.print(safe_block(sentence), style="dim", soft_wrap=True)
