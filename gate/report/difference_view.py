"""What two states differ in, for a terminal of 80 columns."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from gate.comparison.state_difference import StateDifference
from gate.report.difference_words import difference_headline, facts, sections
from gate.report.escape import clean
from gate.report.tables import section_view


def difference_view(difference: StateDifference, limit: int) -> RenderableType:
    """The headline, `limit` rows of each kind, and what was compared."""
    colour = "green" if difference.equal else "red"
    return Group(
        Text(difference_headline(difference), style=f"bold {colour}"),
        *map(section_view, sections(difference, limit, wide=False)),
        *(Text(clean(line), style="dim", overflow="fold") for line in facts(difference)),
    )
