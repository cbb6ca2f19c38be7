"""Two compared commits for a terminal of 80 columns."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from gate.comparison.measured_base_head import Closeness, ComparedCommits
from gate.report.escape import clean
from gate.report.measurements import (
    compared_facts,
    compared_headline,
    compared_sections,
    compared_sentences,
)
from gate.report.sentence import Sentence
from gate.report.tables import section_view

ROWS = 12


def compare_view(compared: ComparedCommits) -> RenderableType:
    """What the two are to each other, then numbers, speed and settings."""
    colour = "green" if compared.closeness is Closeness.EQUAL else "yellow"
    return Group(
        Text(compared_headline(compared), style=f"bold {colour}"),
        *(Sentence(clean(sentence)) for sentence in compared_sentences(compared)),
        *map(section_view, compared_sections(compared, ROWS, wide=False)),
        *(Text(clean(fact), style="dim", overflow="fold") for fact in compared_facts(compared)),
    )
