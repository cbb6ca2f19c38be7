"""Describe what a training's result depends on, in sentences, as a table, and for a terminal."""

from __future__ import annotations

from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from gate.comparison.differences import Event
from gate.comparison.measurements import ReadingLine, ShakenThing, ShakenTraining, ShakeResult
from gate.report.escape import clean, prose
from gate.report.layout import Cell, Row, Section, table_of
from gate.report.markdown import fit, titled_part
from gate.report.measurement_sections import MARKDOWN_LIMIT_BYTES, origin_words
from gate.report.terminal_lines import Sentence, section_view
from gate.settings.variations import VARIATIONS

SHOWN_LINES: Final = 3
MOST: Final = len(VARIATIONS)
WORDS: Final = {
    ShakeResult.EQUAL: "same result",
    ShakeResult.NOT_TRIED: "not tried",
    ShakeResult.FAILS: "FAILS",
    ShakeResult.DIFFERS: "DIFFERS",
}


def shaken_headline(shaken: ShakenTraining) -> str:
    """Say in one sentence what the result depends on."""
    if not shaken.repeatable:
        return (
            f"Not repeatable: runs in which nothing is varied differ {_where(shaken.first)}. So no "
            "difference can be put down to a variation."
        )
    tried, dependent = len(shaken.tried), shaken.dependent
    left = len(shaken.things) - tried
    rest = f" {left} {'was' if left == 1 else 'were'} not tried." if left else ""
    if not tried:
        return "Nothing could be tried, so nothing is known."
    names = ", ".join(thing.name for thing in dependent or shaken.tried)
    if tried == 1:
        return f"The result {'depends' if dependent else 'does not depend'} on {names}.{rest}"
    of_all = f"the {tried} things that were varied"
    if not dependent:
        return f"The result depends on none of {of_all}.{rest}"
    return f"The result depends on {len(dependent)} of {of_all}: {names}.{rest}"


def shaken_sentences(shaken: ShakenTraining) -> tuple[str, ...]:
    """Say what to do about each dependency, or about a training that is not repeatable."""
    if not shaken.repeatable:
        return ("Run `repro-gate gate`: its diagnosis says where they diverge, and why.",)
    return tuple(f"{thing.name}: {thing.remedy}" for thing in shaken.dependent)


def shaken_sections(shaken: ShakenTraining) -> tuple[Section, ...]:
    """Return a row for each variation; nothing if nothing was varied."""
    if not shaken.things or not shaken.repeatable:
        return ()
    headings = ("Varied", "Result", "Where it is read")
    return (
        Section(
            title="One thing varied in each run",
            table=table_of(headings, map(_row, shaken.things), MOST),
        ),
    )


def variations_section() -> Section:
    """Return all variations, for `--list`."""
    rows = (
        (Cell(variation.name), Cell(variation.changes), Cell(variation.reaches))
        for variation in VARIATIONS
    )
    return Section(
        title="What can be varied", table=table_of(("Name", "What changes", "Reaches"), rows, MOST)
    )


def _row(thing: ShakenThing) -> Row:
    return Cell(thing.name), Cell(_result(thing)), Cell(_lines(thing))


def _result(thing: ShakenThing) -> str:
    word = WORDS[thing.result]
    if thing.result is ShakeResult.DIFFERS:
        return f"{word} {_where(thing.first)}"
    return f"{word}: {thing.reason}" if thing.reason else word


def _where(first: Event | None) -> str:
    if first is None:
        return "at the end"
    if first.step is None:
        return f"{first.where}: {first.name}"
    return f"from step {first.step} on: {first.name}"


def _lines(thing: ShakenThing) -> str:
    if not thing.depends:
        return ""
    shown = "; ".join(map(_line, thing.readings[:SHOWN_LINES]))
    more = len(thing.readings) - SHOWN_LINES
    return (shown + (f"; and {more} more" if more > 0 else "")) or "no line of the script was seen"


def _line(line: ReadingLine) -> str:
    call = f" {line.call}" if line.call else ""
    return f"{line.place}{call}{' (in the code)' if line.in_code else ''}"


def shaken_view(shaken: ShakenTraining) -> RenderableType:
    """Return the answer, a row for each variation, and what to do, for a terminal."""
    good = shaken.repeatable and shaken.tried and not shaken.dependent
    return Group(
        Sentence(clean(shaken_headline(shaken)), style=f"bold {'green' if good else 'yellow'}"),
        *map(section_view, shaken_sections(shaken)),
        *(Sentence(clean(sentence)) for sentence in shaken_sentences(shaken)),
        Text(clean(origin_words(shaken.provenance)), style="dim"),
    )


def shaken_markdown(shaken: ShakenTraining) -> str:
    """Return the same for the summary of a job."""
    lines = (shaken_headline(shaken), *shaken_sentences(shaken), origin_words(shaken.provenance))
    head = "\n\n".join(("### What the result depends on", *map(prose, lines)))
    parts = tuple(titled_part(section) for section in shaken_sections(shaken))
    return fit(head, parts, MARKDOWN_LIMIT_BYTES)


def variations_view() -> RenderableType:
    """Return the list of all variations for a terminal."""
    section: Section = variations_section()
    return section_view(section)
