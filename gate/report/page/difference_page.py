"""What two states differ in, as one HTML page that needs nothing else."""

from __future__ import annotations

from gate.comparison.state_difference import StateDifference
from gate.report.difference_words import difference_headline, facts, sections
from gate.report.page.templates import template

PAGE_ROWS = 2_000


def difference_page(difference: StateDifference) -> str:
    """The page, with every figure; at most 2,000 rows of each kind."""
    return template("difference.html").render(
        headline=difference_headline(difference),
        tone="pass" if difference.equal else "fail",
        facts=facts(difference),
        sections=sections(difference, PAGE_ROWS, wide=True),
    )
