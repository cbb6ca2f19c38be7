"""The verdict for a terminal of 80 columns; the caller prints it."""

from __future__ import annotations

import textwrap

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from gate.records.report import ReportLinks
from gate.records.verdict import Outcome, Verdict
from gate.report.assembly import report_of
from gate.report.escape import clean, clean_name, command_lines
from gate.report.layout import Alert, Limits, Report
from gate.report.terminal.tables import cell_text, section_view

TERMINAL_LIMITS = Limits(deltas=5, rows=12)
COMMAND_WIDTH = 76
SHELL_QUOTING = frozenset("'\"\\`$#")


def verdict_view(verdict: Verdict, links: ReportLinks) -> RenderableType:
    """The verdict as one rich renderable: text only, never markup of the training's making."""
    report = report_of(verdict, links, TERMINAL_LIMITS)
    parts: list[RenderableType] = [
        Text(f"{report.icon} repro-gate {report.headline}", style=f"bold {_colour(verdict)}"),
        Text(clean(report.brief.happened)),
        Text(f"Is it this change? {clean(report.brief.this_change)}"),
        *map(_alert, report.alerts),
        _overview(report),
    ]
    parts += [section_view(section) for section in report.sections if section.leading]
    parts += _facts(report)
    return Group(*parts)


def next_text(verdict: Verdict, links: ReportLinks) -> str:
    """What to do next; print it unwrapped, since a line end inside quotes changes a command."""
    report = report_of(verdict, links, TERMINAL_LIMITS)
    lines: list[str] = []
    for step in report.next_steps:
        # only the sentence: a command breaks where a backslash joins it again (`_command_lines`)
        lines += textwrap.wrap(
            clean(step.text), COMMAND_WIDTH, initial_indent="- ", subsequent_indent="  "
        )
        lines += _command_lines(step.command)
    verify = _command_lines(report.verify_command)
    text_lines = ["\nWhat now:", *lines] if lines else []
    return "\n".join([*text_lines, *(["\nVerify:", *verify] if verify else [])])


def _colour(verdict: Verdict) -> str:
    if not verdict.passes:
        return "red"
    return "yellow" if verdict.outcome is Outcome.BASELINE_CHANGE else "green"


def _alert(alert: Alert) -> Text:
    return Text.assemble((f"! {clean_name(alert.code)}: ", "yellow"), clean(alert.text))


def _overview(report: Report) -> RenderableType:
    table = RichTable(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for question, answer in report.overview.rows:
        table.add_row(Text(clean_name(question.text, 30)), cell_text(answer))
    return Padding(table, (1, 0, 0, 0))


def _facts(report: Report) -> list[RenderableType]:
    lines = (f"{name.text}: {clean_name(value.text)}" for name, value in report.facts)
    return [Text(""), *(Text(line, style="dim", overflow="fold") for line in lines)]


def _command_lines(command: str) -> list[str]:
    """The command in lines that fit and can be copied together.

    A command with quotes stays as it is: a line end inside them would change it.
    """
    lines: list[str] = []
    for line in command_lines(command):
        # inside quotes a backslash at a line's end is part of the word or vanishes with it
        if len(line) <= COMMAND_WIDTH or SHELL_QUOTING & set(line):
            lines.append(f"  {line}")
            continue
        pieces = textwrap.wrap(
            line, COMMAND_WIDTH - 4, break_long_words=False, break_on_hyphens=False
        )
        lines += [f"  {piece} \\" for piece in pieces[:-1]] + [f"  {pieces[-1]}"]
    return lines
