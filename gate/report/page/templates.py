"""The templates of HTML pages: they strip invisible characters from each value and escape it."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from gate.comparison.state_difference import StateDifference
from gate.report.difference_words import difference_facts, difference_headline, sections
from gate.report.escape import clean, clean_name
from gate.report.layout import Cell
from gate.text.untrusted_text import visible

CELL_LIMIT = 400


@cache
def template(name: str) -> Template:
    """Return a page's template, compiled once per process; the template escapes every value."""
    environment = Environment(
        loader=PackageLoader("gate", "report/page"),
        # The template escapes, not its callers, so no value can be forgotten (CWE-79).
        autoescape=True,
        # A misspelt name raises here, instead of giving an empty cell that looks like an answer.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    environment.filters["cell"] = _cell_text
    environment.filters["indented"] = _indented
    return environment.get_template(name)


def _visible(value: object) -> object:
    """Return what the template prints: text without hidden characters, other values unchanged."""
    # a macro of the template has already escaped its `Markup`
    if isinstance(value, str) and not isinstance(value, Markup):
        return clean(value, CELL_LIMIT * 20)
    return value


def _indented(line: str) -> Markup:
    """Return a line of a block with its indentation, which has a meaning there; cut at its end."""
    shown = visible(line[: CELL_LIMIT * 20]).rstrip()
    # Escaped here, because `_visible` would fold the spaces of plain text.
    return escape(shown)


def _cell_text(cell: Cell) -> str:
    return clean_name(cell.text) if cell.code else clean(cell.text, CELL_LIMIT)


PAGE_ROWS = 2_000


def difference_page(difference: StateDifference) -> str:
    """Return the page with every figure, at most `PAGE_ROWS` rows of each kind."""
    return template("difference.html").render(
        headline=difference_headline(difference),
        tone="pass" if difference.equal else "fail",
        facts=difference_facts(difference),
        sections=sections(difference, PAGE_ROWS, wide=True),
    )
