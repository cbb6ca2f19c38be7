"""The job summary: the same report with all of its detail."""

from __future__ import annotations

from gate.report.assembly import report_of
from gate.report.comment import head_markdown
from gate.report.layout import Limits, Section
from gate.report.links import ReportLinks
from gate.report.markdown import Part, fit, folded, opened
from gate.verdict.verdict import Verdict

# the runner drops a summary above 1 MiB as a whole
SUMMARY_BYTES = 1_000_000
SUMMARY_LIMITS = Limits(deltas=2_000, rows=500)
LONG_TABLE = 40


def summary_text(verdict: Verdict, links: ReportLinks, *, gate_id: str = "default") -> str:
    """The summary in GitHub Markdown, at most 1,000,000 bytes of UTF-8."""
    report = report_of(verdict, links, SUMMARY_LIMITS)
    return fit(head_markdown(report, gate_id), map(_part, report.sections), SUMMARY_BYTES)


def _part(section: Section) -> Part:
    """Short sections are open, long tables are folded."""
    if len(section.table.rows) > LONG_TABLE:
        return folded(section)
    return opened(section)
