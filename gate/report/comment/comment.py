"""The comment on the pull request: the verdict in ten seconds, everything else folded away."""

from __future__ import annotations

from gate.records.report import ReportLinks
from gate.records.verdict import NextStep, Verdict
from gate.report.assembly import report_of
from gate.report.escape import code_block, prose, safe_url
from gate.report.layout import Limits, Report
from gate.report.markdown import (
    Part,
    alert_markdown,
    facts_line,
    fit,
    folded,
    folded_command,
    folded_together,
    table_markdown,
)

# GitHub refuses a comment above 65,536 characters
COMMENT_BYTES = 60_000
COMMENT_LIMITS = Limits(deltas=10, rows=40)


def marker(gate_id: str) -> str:
    """The hidden first line by which a later run finds its comment again."""
    # an HTML comment shows nowhere on the page, and the next run finds it
    return f"<!-- repro-gate:{gate_id} -->"


def comment_text(verdict: Verdict, links: ReportLinks, *, gate_id: str = "default") -> str:
    """The comment in GitHub Markdown: at most 60,000 bytes of UTF-8, equal for equal verdicts."""
    report = report_of(verdict, links, COMMENT_LIMITS)
    # the marker is in the part that is never cut
    head = f"{marker(gate_id)}\n{head_markdown(report, gate_id)}"
    return fit(head, _parts(report), COMMENT_BYTES)


def _parts(report: Report) -> tuple[Part, ...]:
    """What differs, each under its own title; the rest together under one."""
    rest = tuple(section for section in report.sections if not section.leading)
    verify = folded_command("Verify the sealed package", report.verify_command)
    return (
        *(folded(section) for section in report.sections if section.leading),
        folded_together("More", rest),
        *((verify,) if report.verify_command else ()),
    )


def head_markdown(report: Report, gate_id: str) -> str:
    """What is seen without a click: verdict, cause, warnings, four answers, next command."""
    name = "" if gate_id == "default" else f" ({prose(gate_id)})"
    parts = (
        f"### {report.icon} repro-gate{name} {prose(report.headline)}",
        *_cause_lines(report),
        alert_markdown(report.alerts, report.alerts_total),
        table_markdown(report.overview),
        next_markdown(report),
        _footer(report),
    )
    return "\n\n".join(part for part in parts if part)


def _cause_lines(report: Report) -> tuple[str, ...]:
    """Why, where that is known, before what was seen of it."""
    cause = prose(report.cause) or prose(report.meaning)
    if not report.why:
        return (f"**{cause}**",)
    return f"**Cause: {prose(report.why)}**", cause


def next_markdown(report: Report) -> str:
    """What to do next, each step with its command ready to be copied."""
    if not report.next_steps:
        return ""
    return "\n\n".join(("**Next:**", *map(_step_markdown, report.next_steps)))


def _step_markdown(step: NextStep) -> str:
    text = f"- {prose(step.text)}"
    block = code_block(step.command)
    # two more columns: the block belongs to its item
    indented = "\n".join(f"  {line}" for line in block.splitlines())
    return f"{text}\n\n{indented}" if block else text


def _footer(report: Report) -> str:
    url = safe_url(report.run_url)
    run = f" · [this run]({url})" if url else ""
    return f"<sub>{facts_line(report.facts)}{run}</sub>"
