"""The report as one HTML page that needs nothing else: no script, no address, no other file."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from gate.records.report import ReportLinks
from gate.records.verdict import Verdict
from gate.report import curves
from gate.report.assembly import assemble
from gate.report.escape import clean, clean_name, command_lines, safe_url
from gate.report.layout import Cell, Limits

PAGE_LIMITS = Limits(deltas=2_000, rows=500)
MAX_CURVES = 12
CELL_LIMIT = 400


def page_html(verdict: Verdict, links: ReportLinks, *, gate_id: str = "default") -> str:
    """The page. Every value is stripped of what cannot be seen, then escaped by the template."""
    report = assemble(verdict, links, PAGE_LIMITS)
    return _template().render(
        report=report,
        gate_id=gate_id,
        tone="pass" if verdict.passes else "fail",
        run_url=safe_url(report.run_url),
        command=command_lines(report.next_command),
        curves=[curves.curve(series) for series in verdict.series[:MAX_CURVES]],
        curves_omitted=max(0, len(verdict.series) - MAX_CURVES),
        frame=curves,
    )


@cache
def _template() -> Template:
    """The template, compiled once a process."""
    environment = Environment(
        loader=PackageLoader("gate", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    environment.filters["cell"] = _cell_text
    return environment.get_template("page.html")


def _visible(value: object) -> object:
    """What the template prints: text without hidden characters; the rest as it is."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return clean(value, CELL_LIMIT * 20)
    return value


def _cell_text(cell: Cell) -> str:
    return clean_name(cell.text) if cell.code else clean(cell.text, CELL_LIMIT)
