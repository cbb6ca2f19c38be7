"""Render an audit's answers, and a checklist's, as Markdown and for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Final

from gate.audit.checklist import SOURCES, AnsweredItem, ChecklistAnswer
from gate.audit.items import AuditItem, AuditReport, AuditResult
from gate.report.escape import clean, code, code_block, prose
from gate.report.judged import NAMES, SHORT, figure_words, state_words
from gate.report.wording import BAD, GOOD, NEUTRAL
from gate.text.untrusted_text import safe_line

ICONS: Final = {
    AuditResult.PASS: GOOD,
    AuditResult.FAIL: BAD,
    AuditResult.UNKNOWN: NEUTRAL,
}
LONGEST_PROSE: Final = 600
MAX_MISSING: Final = 3
ORIGINAL: Final = (
    "Filled in from the audit. Items are paraphrased: read the original for what each one asks, "
    "and check every answer before you submit it."
)

OPEN: Final = (
    "Filled in from the audit. An item for a person stays open until somebody has done what it "
    "says, and has signed for it."
)


def audit_markdown(report: AuditReport) -> str:
    """Return a table of the seven parts, then what does not pass, then what is not known."""
    lines = [
        f"## Audit of the {report.subject.value} {code(report.place)}",
        "",
        prose(summary(report)),
        "",
        "| Part | Answer | What is there |",
        "| --- | --- | --- |",
    ]
    for answer in report.parts:
        answers = "; ".join(_answer_of(item) for item in report.items_of(answer.part))
        icon = ICONS[answer.result]
        lines.append(f"| {answer.part.value} | {icon} {answer.result.value} | {answers} |")
    for item in report.items:
        if item.result is not AuditResult.PASS:
            lines += ["", *_open_in_markdown(item)]
    lines += _budget_in_markdown(report)
    lines += ["", "### What this audit cannot know", ""]
    lines += [f"- {prose(text, LONGEST_PROSE)}" for text in report.not_known]
    return "\n".join(lines) + "\n"


def _answer_of(item: AuditItem) -> str:
    if item.result is AuditResult.PASS:
        return prose(item.found, LONGEST_PROSE)
    return f"{code(item.code)}: see below"


def _open_in_markdown(item: AuditItem) -> Iterable[str]:
    yield f"### {ICONS[item.result]} {item.part.value}: {code(item.code)}"
    yield ""
    yield prose(item.found, LONGEST_PROSE)
    yield ""
    for name, text in (("Risk", item.risk), ("Remedy", item.remedy)):
        if text:
            yield f"- {name}: {prose(text, LONGEST_PROSE)}"
    if item.command:
        yield ""
        yield code_block(item.command)


def _budget_in_markdown(report: AuditReport) -> list[str]:
    if not report.determinism_budget:
        return []
    rows = [
        f"| {NAMES[source.kind]} | {state_words(source.state)} | {figure_words(source) or '—'} | "
        f"{prose(source.because)} |"
        for source in report.determinism_budget
    ]
    head = ["| Source | State | A metric moves | Why |", "| --- | --- | --- | --- |"]
    return ["", "### Sources of nonreproducibility", "", *head, *rows]


def checklist_markdown(report: AuditReport, answered: tuple[AnsweredItem, ...]) -> str:
    """Return the checklists item by item; items that no run can answer are left to the author."""
    asked = tuple(dict.fromkeys(item.item.checklist for item in answered))
    public = any(checklist in SOURCES for checklist in asked)
    kind = "Reproducibility" if public else "Production"
    lines = [
        f"# {kind} checklists for the {report.subject.value} {code(report.place)}",
        "",
        ORIGINAL if public else OPEN,
    ]
    for checklist in asked:
        lines += ["", f"## {checklist.value}"]
        if checklist in SOURCES:
            lines += ["", f"Source: <{SOURCES[checklist]}>"]
        for answer in answered:
            if answer.item.checklist is checklist:
                lines += ["", *_item(answer)]
    return "\n".join(lines) + "\n"


def _fact(text: str) -> str:
    """Return a name and its value; the value is in a code span, because readers copy it."""
    name, colon, value = text.partition(": ")
    return f"{prose(name)}: {code(value, LONGEST_PROSE)}" if colon else prose(text, LONGEST_PROSE)


def _item(answer: AnsweredItem) -> Iterable[str]:
    yield f"### {answer.item.number}. {answer.item.asks}"
    yield ""
    if answer.answer is ChecklistAnswer.AUTHOR:
        yield "Answer: **for the author**"
        return
    seen = "" if answer.answer is ChecklistAnswer.PERSON else ", as far as the audit can see"
    yield f"Answer: **{answer.answer.value}**{seen}"
    yield ""
    yield from (f"- {_fact(text)}" for text in answer.facts)
    yield from (f"- Missing: {prose(text, LONGEST_PROSE)}" for text in answer.missing[:MAX_MISSING])
    rest = len(answer.missing) - MAX_MISSING
    if rest > 0:
        yield f"- Missing: {rest:,} more, see `repro-gate audit`"


WIDTH: Final = 80
INDENT: Final = 9
LONGEST_TEXT: Final = 2000
WORDS: Final = {
    AuditResult.PASS: "pass",
    AuditResult.FAIL: "FAIL",
    AuditResult.UNKNOWN: "unknown",
}


def audit_text(report: AuditReport) -> str:
    """Return one line for each part, then what does not pass, with risk, remedy and command."""
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
    """Say how many parts pass, fail and are unknown."""
    counts = {
        result: sum(answer.result is result for answer in report.parts) for result in AuditResult
    }
    return (
        f"{counts[AuditResult.PASS]} of {len(report.parts)} parts pass, "
        f"{counts[AuditResult.FAIL]} fail, {counts[AuditResult.UNKNOWN]} unknown."
    )


def _short(item: AuditItem) -> str:
    """Return a passing item's finding, or another item's code, which is explained below."""
    if item.result is AuditResult.PASS:
        return item.found
    return f"{item.code} (see below)"


def _open_in_text(item: AuditItem) -> Iterator[str]:
    yield from _filled(item.found, f"{WORDS[item.result]}  {item.code}: ", " " * INDENT)
    for name, text in (("risk", item.risk), ("remedy", item.remedy)):
        if text:
            yield from _filled(text, f"  {name:<7}", " " * INDENT)
    if item.command:
        # Never broken over lines, because half a command does something else.
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
