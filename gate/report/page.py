"""The report as one HTML page that needs nothing else: no script, no address, no other file."""

from __future__ import annotations

from gate.records.report import ReportLinks
from gate.records.verdict import Verdict
from gate.report import curves
from gate.report.assembly import assemble
from gate.report.escape import command_lines, safe_url
from gate.report.layout import Limits
from gate.report.templates import template

PAGE_LIMITS = Limits(deltas=2_000, rows=500)
MAX_CURVES = 12


def page_html(verdict: Verdict, links: ReportLinks, *, gate_id: str = "default") -> str:
    """The page. Every value is stripped of what cannot be seen, then escaped by the template."""
    report = assemble(verdict, links, PAGE_LIMITS)
    return template("page.html").render(
        report=report,
        gate_id=gate_id,
        tone="pass" if verdict.passes else "fail",
        run_url=safe_url(report.run_url),
        command=command_lines(report.next_command),
        curves=[curves.curve(series) for series in verdict.series[:MAX_CURVES]],
        curves_omitted=max(0, len(verdict.series) - MAX_CURVES),
        frame=curves,
    )
