"""What a result depends on, for a terminal of 80 columns and as Markdown."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from gate.comparison.shaken import ShakenTraining
from gate.report.escape import clean, prose
from gate.report.layout import Section
from gate.report.markdown import fit, opened
from gate.report.measurement_view import MARKDOWN_LIMIT_BYTES, origin_words
from gate.report.sentence import Sentence
from gate.report.shaken import (
    shaken_headline,
    shaken_sections,
    shaken_sentences,
    variations_section,
)
from gate.report.tables import section_view


def shaken_view(shaken: ShakenTraining) -> RenderableType:
    """The answer, a row for each variation, what to do."""
    good = shaken.repeatable and shaken.tried and not shaken.dependent
    return Group(
        Sentence(clean(shaken_headline(shaken)), style=f"bold {'green' if good else 'yellow'}"),
        *map(section_view, shaken_sections(shaken)),
        *(Sentence(clean(sentence)) for sentence in shaken_sentences(shaken)),
        Text(clean(origin_words(shaken.provenance)), style="dim"),
    )


def shaken_markdown(shaken: ShakenTraining) -> str:
    """The same for the summary of a job."""
    lines = (shaken_headline(shaken), *shaken_sentences(shaken), origin_words(shaken.provenance))
    head = "\n\n".join(("### What the result depends on", *map(prose, lines)))
    parts = tuple(opened(section) for section in shaken_sections(shaken))
    return fit(head, parts, MARKDOWN_LIMIT_BYTES)


def variations_view() -> RenderableType:
    """The list of all variations."""
    section: Section = variations_section()
    return section_view(section)
