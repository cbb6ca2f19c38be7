"""Parts of a report as GitHub Markdown, and their fitting into a size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gate.report.escape import code, code_block, fenced, output_lines, prose, spans, unlinked_lines
from gate.report.layout import Alert, Cell, Row, Section, Table

CUT_NOTE = "*Truncated: the rest is in the report of the run.*"
FOLD_END = "</details>"
CELL_LIMIT = 600
ALERT_LIMIT = 500
# below this, what would be left of a part is not worth its heading
SMALLEST_PART = 600
PRINTED_LIMIT = 6000


@dataclass(frozen=True, kw_only=True, slots=True)
class MarkdownPart:
    """A piece of Markdown that may be cut at a line end; `close` is never cut off."""

    text: str
    close: str = ""


def table_markdown(table: Table) -> str:
    """A table, with a line that counts the rows that are not shown; nothing without a row."""
    if not table.rows:
        return ""
    rules = ("--:" if index in table.right else "---" for index in range(len(table.headings)))
    lines = [
        _row(prose(heading, CELL_LIMIT) for heading in table.headings),
        _row(rules),
        *(_row(map(cell_markdown, row)) for row in table.rows),
    ]
    if table.omitted:
        lines += ["", f"*and {table.omitted:,} more*"]
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def cell_markdown(cell: Cell) -> str:
    """A cell's text, escaped for a table."""
    return code(cell.text) if cell.code else spans(cell.text, CELL_LIMIT)


def titled_part(section: Section) -> MarkdownPart:
    """A section under its heading."""
    return MarkdownPart(text=f"#### {prose(section.title)}\n\n{_body(section)}")


def folded(section: Section) -> MarkdownPart:
    """A section that opens on a click."""
    return _fold(prose(section.title), _body(section))


def _body(section: Section) -> str:
    """The section's table, or its lines as they were printed."""
    if not section.printed:
        return table_markdown(section.table)
    lines = output_lines(row[0].text for row in section.table.rows)
    # a block that is cut would have no end: what is too long for a block loses its first lines
    while len("\n".join(lines)) > PRINTED_LIMIT:
        lines = lines[1:]
    return fenced(unlinked_lines(lines), "text")


def folded_together(title: str, sections: tuple[Section, ...]) -> MarkdownPart:
    """Several sections that open on one click; the title lists them."""
    names = ", ".join(prose(section.title) for section in sections)
    return _fold(
        f"{prose(title)}: {names}", "\n\n".join(titled_part(part).text for part in sections)
    )


def folded_text(title: str, body: str) -> MarkdownPart:
    """Markdown that opens on a click."""
    return _fold(prose(title), body)


def folded_command(title: str, command: str) -> MarkdownPart:
    """A command that opens on a click."""
    return _fold(prose(title), code_block(command))


def _fold(summary: str, body: str) -> MarkdownPart:
    opening = f"<details><summary>{summary}</summary>"
    # a cut without the end tag would fold away all that stands behind it
    return MarkdownPart(text=f"{opening}\n\n{body}", close=f"\n\n{FOLD_END}")


def alert_markdown(alerts: tuple[Alert, ...], total: int) -> str:
    """The findings that must be seen, as one of GitHub's warning boxes."""
    if not alerts:
        return ""
    lines = ["> [!WARNING]", *(f"> - {_alert(alert)}" for alert in alerts)]
    if total > len(alerts):
        lines.append(f"> - and {total - len(alerts):,} more")
    return "\n".join(lines)


def _alert(alert: Alert) -> str:
    return f"{code(alert.code)}: {spans(alert.text, ALERT_LIMIT)}"


def facts_line(facts: tuple[Row, ...]) -> str:
    """Names and values on one line."""
    return " · ".join(" ".join(map(cell_markdown, fact)) for fact in facts)


def fit(head: str, parts: Iterable[MarkdownPart], limit_bytes: int) -> str:
    """The head, then the parts that fit, the last of them cut at a line end.

    The result never exceeds `limit_bytes` of UTF-8 and always begins like `head`.
    """
    text = cut_lines(head, limit_bytes - 1)
    for part in parts:
        # in bytes, of which there are never fewer than characters:
        # GitHub limits a comment by the one and a summary by the other
        room = limit_bytes - _size(text) - len("\n\n\n")
        whole = part.text + part.close
        if _size(whole) <= room:
            text += f"\n\n{whole}"
            continue
        ending = f"\n\n{CUT_NOTE}{part.close}"
        if room >= SMALLEST_PART + _size(ending):
            text += f"\n\n{cut_lines(part.text, room - _size(ending))}{ending}"
        # in order of interest: a smaller part behind one
        # that was cut would hide that something is missing
        break
    return text + "\n"


def cut_lines(text: str, limit_bytes: int) -> str:
    """As many whole lines from the beginning as fit."""
    if _size(text) <= limit_bytes:
        return text
    # decoding drops a character that was cut in two; its line goes anyway
    head = text.encode()[: limit_bytes + 1].decode("utf-8", "ignore")
    return head.rpartition("\n")[0]


def _size(text: str) -> int:
    return len(text.encode())
