"""What earlier runs of a gate on the default branch came to, as JSON Lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pydantic import Field

from gate.errors import DocumentError
from gate.text.document import Document, Timestamp
from gate.text.documents import read_document
from gate.text.json_text import canonical_json
from gate.verdict.verdict import Outcome

HISTORY_SCHEMA: Final = "repro-gate.history/1"
HISTORY_BRANCH: Final = "repro-gate-history"
MAX_HISTORY_LINES: Final = 200
# a name of 60 characters outside of ASCII, escaped, is 720 bytes of it
MAX_HISTORY_LINE_BYTES: Final = 1500
MAX_HISTORY_BYTES: Final = MAX_HISTORY_LINES * MAX_HISTORY_LINE_BYTES


class HistoryLine(Document):
    """One run of the gate: a line of the history file.

    `metric` is the main metric and `last` its last value in decimal, empty where none was recorded.
    `cost_ratio` is the step time in strict mode over that in default mode, where it was measured.
    """

    schema_version: Literal["repro-gate.history/1"] = HISTORY_SCHEMA
    judged_at: Timestamp
    commit: str = Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")
    outcome: Outcome
    passes: bool
    metric: str = Field(default="", max_length=60)
    last: str = Field(default="", max_length=40)
    cost_ratio: float | None = Field(default=None, gt=0, lt=1e6, allow_inf_nan=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """The lines that could be read, the oldest first; `problem` says what could not."""

    lines: tuple[HistoryLine, ...] = ()
    problem: str = ""


def history_file(gate_id: str) -> str:
    """The name of a gate's history on its branch."""
    return f"{gate_id}.jsonl"


def badge_file(gate_id: str) -> str:
    """The name of a gate's badge on the same branch."""
    return f"{gate_id}.badge.json"


def read_history(data: bytes, source: str) -> History:
    """The last 200 lines; those that are no line of a history are counted in `problem`.

    Raises `DocumentError` for a file that is larger than 200 of the longest lines.
    """
    if len(data) > MAX_HISTORY_BYTES:
        raise DocumentError(
            f"{source}: {len(data):,} bytes, the limit is {MAX_HISTORY_BYTES:,}",
            hint=(
                "Delete the file on its branch: the next run on the default branch starts a new "
                "one."
            ),
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
