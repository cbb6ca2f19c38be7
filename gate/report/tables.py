"""Tables of a report for a terminal of 80 columns."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from gate.report.escape import clean, clean_name, output_lines
from gate.report.layout import Cell, Section


def section_view(section: Section) -> RenderableType:
    """A titled table; every cell is text, never markup."""
    data = section.table
    if section.printed:
        lines = output_lines(row[0].text for row in data.rows)
        title = Text(section.title, style="bold")
        return Padding(Group(title, *(Text(line) for line in lines)), (1, 0, 0, 0))
    table = RichTable(
        box=box.SIMPLE_HEAD, title=Text(section.title, style="bold"), title_justify="left"
    )
    for index, heading in enumerate(data.headings):
        table.add_column(
            Text(clean_name(heading, 30)),
            justify="right" if index in data.right else "left",
            # wrapped and not cut: a digest or path that is cut short cannot be copied
            overflow="fold",
        )
    for row in data.rows:
        table.add_row(*map(cell_text, row))
    if data.omitted:
        table.caption = Text(f"and {data.omitted:,} more")
        table.caption_justify = "left"
    return Padding(table, (1, 0, 0, 0))


def cell_text(cell: Cell) -> Text:
    """A cell as text: a name is cut in its middle, a sentence at its end."""
    return Text(clean_name(cell.text) if cell.code else clean(cell.text))
