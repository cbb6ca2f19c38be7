"""Render parts of a report as GitHub Markdown, and fit them into a size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gate.report.escape import code, code_block, fenced, output_lines, prose, spans, unlinked_lines
from gate.report.layout import Alert, Cell, Row, Section, Table

CUT_NOTE = "*Truncated: the rest is in the report of the run.*"
FOLD_END = "</details>"
CELL_LIMIT = 600
ALERT_LIMIT = 500
# below this size the rest of a part is not worth its heading
SMALLEST_PART = 600
PRINTED_LIMIT = 6000


@dataclass(frozen=True, kw_only=True, slots=True)
class MarkdownPart:
    """A piece of Markdown that may be cut at a line end; `close` is always kept."""

    text: str
    close: str = ""


def table_markdown(table: Table) -> str:
    """Return a table with the number of rows that are not shown, or nothing without rows."""
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
    """Return a cell's text, escaped for a table."""
    return code(cell.text) if cell.code else spans(cell.text, CELL_LIMIT)


def titled_part(section: Section) -> MarkdownPart:
    """Return a section under its heading."""
    return MarkdownPart(text=f"#### {prose(section.title)}\n\n{_body(section)}")


def folded(section: Section) -> MarkdownPart:
    """Return a section that opens on a click."""
    return _fold(prose(section.title), _body(section))


def _body(section: Section) -> str:
    """Return the section's table, or its lines as they were printed."""
    if not section.printed:
        return table_markdown(section.table)
    lines = output_lines(row[0].text for row in section.table.rows)
    # `fit` cuts at a line end, and a cut block would lose its end. So drop the first lines here.
    while len("\n".join(lines)) > PRINTED_LIMIT:
        lines = lines[1:]
    return fenced(unlinked_lines(lines), "text")


def folded_together(title: str, sections: tuple[Section, ...]) -> MarkdownPart:
    """Return several sections that open on one click; the title lists them."""
    names = ", ".join(prose(section.title) for section in sections)
    return _fold(
        f"{prose(title)}: {names}", "\n\n".join(titled_part(part).text for part in sections)
    )


def folded_text(title: str, body: str) -> MarkdownPart:
    """Return Markdown that opens on a click."""
    return _fold(prose(title), body)


def folded_command(title: str, command: str) -> MarkdownPart:
    """Return a command that opens on a click."""
    return _fold(prose(title), code_block(command))


def _fold(summary: str, body: str) -> MarkdownPart:
    opening = f"<details><summary>{summary}</summary>"
    # Without the end tag, a cut part would hide everything after it.
    return MarkdownPart(text=f"{opening}\n\n{body}", close=f"\n\n{FOLD_END}")


def alert_markdown(alerts: tuple[Alert, ...], total: int) -> str:
    """Return the findings that must be seen, as one of GitHub's warning boxes."""
    if not alerts:
        return ""
    lines = ["> [!WARNING]", *(f"> - {_alert(alert)}" for alert in alerts)]
    if total > len(alerts):
        lines.append(f"> - and {total - len(alerts):,} more")
    return "\n".join(lines)


def _alert(alert: Alert) -> str:
    return f"{code(alert.code)}: {spans(alert.text, ALERT_LIMIT)}"


def facts_line(facts: tuple[Row, ...]) -> str:
    """Return names and values on one line."""
    return " · ".join(" ".join(map(cell_markdown, fact)) for fact in facts)


def fit(head: str, parts: Iterable[MarkdownPart], limit_bytes: int) -> str:
    """Return the head and the parts that fit, with the last of them cut at a line end.

    The result has at most `limit_bytes` of UTF-8, and always begins with `head`, which is only cut
    if it alone is too long.
    """
    text = cut_lines(head, limit_bytes - 1)
    for part in parts:
        # In bytes, which are never fewer than characters: GitHub limits a summary by bytes and a
        # comment by characters.
        room = limit_bytes - _size(text) - len("\n\n\n")
        whole = part.text + part.close
        if _size(whole) <= room:
            text += f"\n\n{whole}"
            continue
        ending = f"\n\n{CUT_NOTE}{part.close}"
        if room >= SMALLEST_PART + _size(ending):
            text += f"\n\n{cut_lines(part.text, room - _size(ending))}{ending}"
        # Parts are in order of interest. A smaller part after one that was cut would hide that
        # something is missing.
        break
    return text + "\n"


def cut_lines(text: str, limit_bytes: int) -> str:
    """Return as many whole lines from the beginning as fit."""
    if _size(text) <= limit_bytes:
        return text
    # Decoding drops a character that was cut in two; its line is dropped anyway.
    head = text.encode()[: limit_bytes + 1].decode("utf-8", "ignore")
    return head.rpartition("\n")[0]


def _size(text: str) -> int:
    return len(text.encode())
