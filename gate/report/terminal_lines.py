"""Sentences, commands and tables for a terminal of 80 columns.

The lines are printed unwrapped. A narrower terminal shows a line in several rows but copies it as
one.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from gate.comparison.state_difference import StateDifference
from gate.report.difference_words import difference_facts, difference_headline, sections
from gate.report.escape import clean, clean_name, command_lines, output_lines
from gate.report.layout import Cell, Section

# A narrower terminal shows a line in two rows, but copies it as one.
LEAST_WIDTH = 60
# A longer word is most often a digest or a path, and may be broken if a table has no room.
WHOLE_WORD = 16


@dataclass(frozen=True, slots=True)
class Sentence:
    """Text after a lead; further lines begin with `indent` blanks.

    Print it with `crop=False`: a line with a long command is wider than the terminal, which shows
    it in several rows and copies it as one line.
    """

    text: str
    style: str = ""
    lead: str = ""
    lead_style: str = ""
    indent: int = 0

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield the wrapped text, as rich's protocol asks; the available width is rich's."""
        width = max(options.max_width, LEAST_WIDTH)
        lines = filled(self.text, width, first=self.lead, rest=" " * self.indent)
        shown = Text("\n".join(lines), style=self.style, no_wrap=True, overflow="ignore")
        shown.stylize(self.lead_style, 0, len(self.lead))
        yield shown


COMMAND_WIDTH = 76
SHELL_QUOTING = frozenset("'\"\\`$#")
# Text in backticks counts as one word, because it may be a command.
WORDS = re.compile(r"(?:`[^`]*`|\S)+")


def step_lines(text: str, *commands: str) -> list[str]:
    """Return a sentence as a list entry, with its commands below, each to be copied whole."""
    lines = filled(clean(text), COMMAND_WIDTH, first="- ", rest="  ")
    for command in commands:
        lines += shell_lines(command)
    return lines


def shell_lines(command: str) -> list[str]:
    """Return the command in lines that fit and can be copied together.

    A command with quotes is not broken, because a line end inside quotes would change it.
    """
    lines: list[str] = []
    for line in command_lines(command):
        # Inside quotes a backslash at a line's end becomes part of the word, or disappears with it.
        if len(line) <= COMMAND_WIDTH or SHELL_QUOTING & set(line):
            lines.append(f"  {line}")
            continue
        pieces = textwrap.wrap(
            line, COMMAND_WIDTH - 4, break_long_words=False, break_on_hyphens=False
        )
        lines += [f"  {piece} \\" for piece in pieces[:-1]] + [f"  {pieces[-1]}"]
    return lines


def filled(text: str, width: int, *, first: str = "", rest: str = "") -> list[str]:
    """Wrap text into lines of `width` characters; a longer word gets a line of its own.

    `first` begins the first line, and `rest` all others.
    """
    lines, line = [], first
    for word in WORDS.findall(text):
        begun = line not in (first, rest)
        if begun and len(line) + 1 + len(word) > width:
            lines.append(line)
            line, begun = rest, False
        line += f" {word}" if begun else word
    return [*lines, line]


def section_view(section: Section) -> RenderableType:
    """Return a titled table; every cell is text, never markup."""
    data = section.table
    if section.printed:
        lines = output_lines(row[0].text for row in data.rows)
        title = Text(section.title, style="bold")
        return Padding(Group(title, *(Text(line) for line in lines)), (1, 0, 0, 0))
    table = RichTable(
        box=box.SIMPLE_HEAD,
        title=Text(section.title, style="bold"),
        title_justify="left",
        collapse_padding=True,
    )
    rows = [tuple(map(cell_text, row)) for row in data.rows]
    for index, heading in enumerate(data.headings):
        words = [word for row in rows for word in row[index].plain.split()]
        table.add_column(
            Text(clean_name(heading, 30)),
            justify="right" if index in data.right else "left",
            # Wrapped rather than cut, because a shortened digest or path cannot be copied.
            overflow="fold",
            # A column of sentences becomes narrower before a column of single words breaks one.
            min_width=min(max(map(len, words), default=1), WHOLE_WORD),
        )
    for row in rows:
        table.add_row(*row)
    if data.omitted:
        table.caption = Text(f"and {data.omitted:,} more")
        table.caption_justify = "left"
    return Padding(table, (1, 0, 0, 0))


def cell_text(cell: Cell) -> Text:
    """Return a cell as text; a name is cut in its middle, a sentence at its end."""
    return Text(clean_name(cell.text) if cell.code else clean(cell.text))


def difference_view(difference: StateDifference, limit: int) -> RenderableType:
    """Return the headline, at most `limit` rows of each kind, and what was compared."""
    colour = "green" if difference.equal else "red"
    return Group(
        Text(difference_headline(difference), style=f"bold {colour}"),
        *map(section_view, sections(difference, limit, wide=False)),
        *(Text(clean(line), style="dim", overflow="fold") for line in difference_facts(difference)),
    )
