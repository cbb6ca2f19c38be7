"""Sentences, commands and tables for a terminal of 80 columns.

The lines are printed unwrapped. A terminal that is narrower shows a line in several rows and still
copies it as one.
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

# what is narrower shows a line in two rows, and copies it as one
LEAST_WIDTH = 60
# a longer one, most often a digest or a path, is broken where a table has no room
WHOLE_WORD = 16


@dataclass(frozen=True, slots=True)
class Sentence:
    """Text behind a lead; further lines begin with `indent` blanks.

    Print it with `crop=False`: a line with a long command is wider than the terminal, which shows
    it in several rows and copies it as one line.
    """

    text: str
    style: str = ""
    lead: str = ""
    lead_style: str = ""
    indent: int = 0

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Rich's protocol of what can be printed; the width is that of the place."""
        width = max(options.max_width, LEAST_WIDTH)
        lines = filled(self.text, width, first=self.lead, rest=" " * self.indent)
        shown = Text("\n".join(lines), style=self.style, no_wrap=True, overflow="ignore")
        shown.stylize(self.lead_style, 0, len(self.lead))
        yield shown


COMMAND_WIDTH = 76
SHELL_QUOTING = frozenset("'\"\\`$#")
# what is in backticks is one word: it may be a command
WORDS = re.compile(r"(?:`[^`]*`|\S)+")


def step_lines(text: str, *commands: str) -> list[str]:
    """A sentence as an entry of a list, and its commands below it, each to be copied whole."""
    lines = filled(clean(text), COMMAND_WIDTH, first="- ", rest="  ")
    for command in commands:
        lines += shell_lines(command)
    return lines


def shell_lines(command: str) -> list[str]:
    """The command in lines that fit and can be copied together.

    A command with quotes stays as it is: a line end inside them would change it.
    """
    lines: list[str] = []
    for line in command_lines(command):
        # inside quotes a backslash at a line's end is part of the word or vanishes with it
        if len(line) <= COMMAND_WIDTH or SHELL_QUOTING & set(line):
            lines.append(f"  {line}")
            continue
        pieces = textwrap.wrap(
            line, COMMAND_WIDTH - 4, break_long_words=False, break_on_hyphens=False
        )
        lines += [f"  {piece} \\" for piece in pieces[:-1]] + [f"  {pieces[-1]}"]
    return lines


def filled(text: str, width: int, *, first: str = "", rest: str = "") -> list[str]:
    """One line of text in lines of `width` characters; a longer word has a line of its own.

    `first` begins the first line, `rest` all others.
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
    """A titled table; every cell is text, never markup."""
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
            # wrapped and not cut: a digest or path that is cut short cannot be copied
            overflow="fold",
            # a column of words gives way to one of sentences before it breaks a word
            min_width=min(max(map(len, words), default=1), WHOLE_WORD),
        )
    for row in rows:
        table.add_row(*row)
    if data.omitted:
        table.caption = Text(f"and {data.omitted:,} more")
        table.caption_justify = "left"
    return Padding(table, (1, 0, 0, 0))


def cell_text(cell: Cell) -> Text:
    """A cell as text: a name is cut in its middle, a sentence at its end."""
    return Text(clean_name(cell.text) if cell.code else clean(cell.text))


def difference_view(difference: StateDifference, limit: int) -> RenderableType:
    """The headline, `limit` rows of each kind, and what was compared."""
    colour = "green" if difference.equal else "red"
    return Group(
        Text(difference_headline(difference), style=f"bold {colour}"),
        *map(section_view, sections(difference, limit, wide=False)),
        *(Text(clean(line), style="dim", overflow="fold") for line in difference_facts(difference)),
    )
