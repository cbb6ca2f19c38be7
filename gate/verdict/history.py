"""A history file in and out: JSON Lines, bounded, a broken line left out."""

from __future__ import annotations

from gate.errors import DocumentError
from gate.text.documents import read_document
from gate.text.json_text import canonical_json
from gate.verdict.published_history import (
    MAX_HISTORY_BYTES,
    MAX_HISTORY_LINE_BYTES,
    MAX_HISTORY_LINES,
    History,
    HistoryLine,
)


def read_history(data: bytes, source: str) -> History:
    """The last 200 lines; those that are no line of a history are counted in `problem`.

    Raises `DocumentError` for a file that is larger than 200 of the longest lines.
    """
    if len(data) > MAX_HISTORY_BYTES:
        raise DocumentError(
            f"{source}: {len(data):,} bytes, the limit is {MAX_HISTORY_BYTES:,}",
            hint="Delete the file on its branch: the next run on the default branch begins anew.",
        )
    found: list[HistoryLine] = []
    rows = data.splitlines()[-MAX_HISTORY_LINES:]
    for row in rows:
        try:
            line = read_document(HistoryLine, row, source, max_bytes=MAX_HISTORY_LINE_BYTES)
        # of another version, or by another hand: the others still tell something
        except DocumentError:
            continue
        found.append(line)
    broken = len(rows) - len(found)
    problem = f"{source}: {broken} of {len(rows)} lines are not readable" if broken else ""
    return History(lines=tuple(found), problem=problem)


def with_line(data: bytes, line: HistoryLine) -> bytes:
    """A history file with one more line at its end; what is too old or too long is dropped.

    The lines that are there are not parsed: whoever writes holds a token. A line that is there
    already is not written twice.
    """
    new = canonical_json(line.model_dump(mode="json"))
    # all of ours are ASCII: the API takes text, and one foreign byte would stop every later line
    kept = [
        row
        for row in data.splitlines()
        if row and row.isascii() and len(row) <= MAX_HISTORY_LINE_BYTES
    ]
    if new not in kept:
        kept.append(new)
    return b"".join(row + b"\n" for row in kept[-MAX_HISTORY_LINES:])
