"""The comment on the pull request: the verdict in ten seconds, everything else folded away."""

from __future__ import annotations

from gate.report.assembly import report_of
from gate.report.escape import (
    code_block,
    fenced,
    output_lines,
    prose,
    safe_url,
    spans,
    unlinked_lines,
)
from gate.report.layout import Cell, Limits, Report, ShownLines
from gate.report.links import ReportLinks
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
from gate.verdict.verdict import NextStep, Verdict

# GitHub refuses a comment above 65,536 characters
COMMENT_BYTES = 60_000
LEAD_LIMIT = 1600
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
    rest = tuple(
        section for section in report.sections if section.in_comment and not section.leading
    )
    verify = folded_command("Verify the sealed package", report.verify_command)
    return (
        *(folded(section) for section in report.sections if section.leading),
        folded_together("More", rest),
        *((verify,) if report.verify_command else ()),
    )


def head_markdown(report: Report, gate_id: str) -> str:
    """What is seen without a click: three answers, warnings, the small table."""
    name = "" if gate_id == "default" else f" ({prose(gate_id)})"
    parts = (
        f"### {report.icon} repro-gate{name} {prose(report.headline)}",
        f"**What happened?** {spans(report.brief.happened, LEAD_LIMIT)}",
        change_markdown(report.brief.change),
        f"**Is it this change?** {spans(report.brief.this_change)}",
        next_markdown(report),
        alert_markdown(report.alerts, report.alerts_total),
        table_markdown(report.overview),
        _footer(report),
    )
    return "\n\n".join(part for part in parts if part)


def change_markdown(change: ShownLines | None) -> str:
    """The changed lines themselves, as GitHub colours a diff."""
    if change is None:
        return ""
    lines = unlinked_lines(output_lines(change.lines))
    return f"{spans(change.caption)}\n\n{fenced(lines, 'diff')}"


def next_markdown(report: Report) -> str:
    """What to do now, each step with its command ready to be copied."""
    steps = report.next_steps
    if not steps:
        return "**What now?** Nothing to do."
    if len(steps) == 1 and not steps[0].command:
        return f"**What now?** {spans(steps[0].text)}"
    return "\n\n".join(("**What now?**", *map(_step_markdown, steps)))


def _step_markdown(step: NextStep) -> str:
    text = f"- {spans(step.text)}"
    block = code_block(step.command)
    # two more columns: the block belongs to its item
    indented = "\n".join(f"  {line}" for line in block.splitlines())
    return f"{text}\n\n{indented}" if block else text


def _footer(report: Report) -> str:
    url = safe_url(report.run_url)
    links = f" · [this run]({url}) · [its artifacts]({url}#artifacts)" if url else ""
    facts = ((Cell("outcome"), Cell(report.outcome, code=True)), *report.facts[:1])
    time = f" · {prose(report.time)}" if report.time else ""
    return f"<sub>{facts_line(facts)}{time}{links}</sub>"
