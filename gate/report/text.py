"""The answers of an audit for a terminal of 80 columns, as plain lines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Final

from gate.audit.audit import AuditItem, AuditReport, AuditResult
from gate.report.budget_words import SHORT, figure_words, state_words
from gate.report.escape import clean
from gate.text.untrusted_text import safe_line

WIDTH: Final = 80
INDENT: Final = 9
LONGEST_TEXT: Final = 2000
WORDS: Final = {
    AuditResult.PASS: "pass",
    AuditResult.FAIL: "FAIL",
    AuditResult.UNKNOWN: "unknown",
}


def audit_text(report: AuditReport) -> str:
    """One line a part, then all that is no pass with risk, remedy and command."""
    lines = [*_filled(f"Audit of the {report.subject.value} {report.place}", ""), ""]
    for answer in report.parts:
        names = "; ".join(_short(item) for item in report.items_of(answer.part))
        lead = f"  {WORDS[answer.result]:<8} {answer.part.value:<14} "
        lines += _filled(names or "nothing is known", lead, " " * len(lead))
    lines += ["", summary(report)]
    for result in (AuditResult.FAIL, AuditResult.UNKNOWN):
        for item in report.items:
            if item.result is result:
                lines += ["", *_open_in_text(item)]
    if report.determinism_budget:
        lines += ["", "Sources of nonreproducibility:", *_budget_in_text(report)]
    if report.not_known:
        lines += ["", "What this audit cannot know:"]
        for text in report.not_known:
            lines += _filled(text, "  - ", "    ")
    return "\n".join(lines) + "\n"


def summary(report: AuditReport) -> str:
    """How many parts pass, fail and are unknown."""
    counts = {
        result: sum(answer.result is result for answer in report.parts) for result in AuditResult
    }
    return (
        f"{counts[AuditResult.PASS]} of {len(report.parts)} parts pass, "
        f"{counts[AuditResult.FAIL]} fail, {counts[AuditResult.UNKNOWN]} unknown."
    )


def _short(item: AuditItem) -> str:
    """What is no pass by its name alone: it is explained below."""
    if item.result is AuditResult.PASS:
        return item.found
    return f"{item.code} (see below)"


def _open_in_text(item: AuditItem) -> Iterator[str]:
    yield from _filled(item.found, f"{WORDS[item.result]}  {item.code}: ", " " * INDENT)
    for name, text in (("risk", item.risk), ("remedy", item.remedy)):
        if text:
            yield from _filled(text, f"  {name:<7}", " " * INDENT)
    if item.command:
        # never broken: half a command does something else
        yield f"  {'type':<7}{safe_line(clean(item.command, LONGEST_TEXT), limit=LONGEST_TEXT)}"


def _budget_in_text(report: AuditReport) -> Iterator[str]:
    for source in report.determinism_budget:
        figure = figure_words(source)
        moved = f" (moved a metric {figure})" if figure else ""
        lead = f"  {SHORT[source.kind]:<16} "
        text = f"{state_words(source.state)}{moved}: {source.because}"
        yield from _filled(text, lead, " " * len(lead))


def _filled(text: str, lead: str, rest: str = "") -> list[str]:
    return textwrap.wrap(
        safe_line(clean(text, LONGEST_TEXT), limit=LONGEST_TEXT),
        WIDTH,
        initial_indent=lead,
        subsequent_indent=rest,
        break_on_hyphens=False,
        drop_whitespace=True,
    ) or [lead.rstrip()]
