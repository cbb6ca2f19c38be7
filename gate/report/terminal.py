"""Render the verdict for a terminal of 80 columns; the caller prints it."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from gate.report.assembly import ReportLinks, report_of
from gate.report.brief import short_reason
from gate.report.escape import clean, clean_name, output_lines
from gate.report.layout import Alert, Limits, Report, ShownLines
from gate.report.terminal_lines import Sentence, cell_text, section_view, shell_lines, step_lines
from gate.report.wording import headline, icon
from gate.verdict.verdict import Outcome, Verdict

TERMINAL_LIMITS = Limits(deltas=5, rows=12)


def verdict_view(verdict: Verdict, links: ReportLinks) -> RenderableType:
    """Return the verdict as one rich renderable; the training's text is never taken as markup."""
    report = report_of(verdict, links, TERMINAL_LIMITS)
    title = clean(f"{report.icon} repro-gate {report.headline}")
    parts: list[RenderableType] = [
        Text(title, style=f"bold {_colour(verdict)}"),
        Sentence(clean(report.brief.happened)),
        *change_lines(report.brief.change),
        Sentence(f"Is it this change? {clean(report.brief.this_change)}"),
        *map(_alert, report.alerts),
        _overview(report),
        *(Text(line, no_wrap=True, overflow="ignore") for line in _drawn(report)),
    ]
    parts += [section_view(section) for section in report.sections if section.leading]
    parts += _facts(report)
    return Group(*parts)


def summary_lines(verdict: Verdict, links: ReportLinks, *, accept: str = "") -> str:
    """Return what a comment says before its table, as plain text.

    `accept` replaces the steps that accept the result, because the caller accepts it differently.
    """
    report = report_of(verdict, links, TERMINAL_LIMITS)
    change = report.brief.change
    shown = () if change is None else (change.caption, *(f"  {line}" for line in change.lines))
    steps = [step.text for step in report.next_steps if not (accept and step.accepts)]
    steps += [accept] if accept else []
    lines = (
        f"repro-gate {report.headline}",
        f"What happened? {report.brief.happened}",
        *shown,
        f"Is it this change? {report.brief.this_change}",
        *(f"What now? {text}" for text in steps),
    )
    return "\n".join(map(clean, lines))


def quiet_line(verdict: Verdict) -> str:
    """Return the verdict in one line: the headline and, if it fails, the cause."""
    said = f"{icon(verdict)} repro-gate {headline(verdict)}"
    reason = short_reason(verdict)
    return clean(f"{said}. {reason}" if reason else said)


def next_text(verdict: Verdict, links: ReportLinks) -> str:
    """Return the next steps; print them unwrapped, since a line end in quotes changes a command."""
    report = report_of(verdict, links, TERMINAL_LIMITS)
    lines: list[str] = []
    for step in report.next_steps:
        lines += step_lines(step.text, step.command)
    verify = shell_lines(report.verify_command)
    text_lines = ["\nWhat now:", *lines] if lines else []
    return "\n".join([*text_lines, *(["\nVerify:", *verify] if verify else [])])


def change_lines(change: ShownLines | None) -> list[RenderableType]:
    """Return the changed lines, indented; a long line is wrapped, because its end may differ."""
    if change is None:
        return []
    lines = (
        Padding(Text(line, overflow="fold"), (0, 0, 0, 2), expand=False)
        for line in output_lines(change.lines)
    )
    return [Sentence(clean(change.caption)), *lines]


def _colour(verdict: Verdict) -> str:
    if verdict.nothing_to_compare:
        return "yellow"
    if not verdict.passes:
        return "red"
    return "yellow" if verdict.outcome is Outcome.BASELINE_CHANGE else "green"


def _alert(alert: Alert) -> Sentence:
    lead = f"! {clean_name(alert.code)}: "
    return Sentence(clean(alert.text), lead=lead, lead_style="yellow")


def _overview(report: Report) -> RenderableType:
    table = RichTable(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for question, answer in report.overview.rows:
        table.add_row(Text(clean_name(question.text, 30)), cell_text(answer))
    return Padding(table, (1, 0, 0, 0))


def _drawn(report: Report) -> tuple[str, ...]:
    lines = output_lines(report.drawing)
    return ("", *lines) if lines else ()


def _facts(report: Report) -> list[RenderableType]:
    # Not wrapped, because an address or a digest is copied as one line.
    facts = [
        Text(f"{name.text}: {clean_name(value.text)}", style="dim", no_wrap=True, overflow="ignore")
        for name, value in report.facts
    ]
    time = [Text(report.time, style="dim", overflow="fold")] if report.time else []
    return [Text(""), *facts, *time]
