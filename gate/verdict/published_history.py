"""What earlier runs of a gate on the default branch came to: for reading, it decides nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pydantic import Field

from gate.text.records_document import Document, Timestamp
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
