"""What earlier runs of a gate came to, as JSON Lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from gate.errors import DocumentError
from gate.settings.levels import ReachedLevel
from gate.system.gate_names import DEFAULT_GATE, GATE_ID_PATTERN
from gate.text.document import Document, Timestamp
from gate.text.documents import read_document
from gate.text.json_text import canonical_json
from gate.verdict.verdict import FailureMode, Outcome

HISTORY_SCHEMA: Final = "repro-gate.history/2"
HISTORY_BRANCH: Final = "repro-gate-history"
MAX_HISTORY_LINES: Final = 200
# four names of 60 characters outside of ASCII, escaped, are 720 bytes each
MAX_HISTORY_LINE_BYTES: Final = 4000
MAX_HISTORY_BYTES: Final = MAX_HISTORY_LINES * MAX_HISTORY_LINE_BYTES
Name = Annotated[str, Field(max_length=60)]
Seconds = Annotated[float, Field(ge=0, lt=1e9, allow_inf_nan=False)]


class _Line(Document):
    """What every line says of itself.

    `run_id` names the job that wrote it, empty where none is known.
    """

    schema_version: Literal["repro-gate.history/2"] = HISTORY_SCHEMA
    judged_at: Timestamp
    run_id: str = Field(default="", max_length=100, pattern=r"^[\x20-\x7e]*$")
    gate_id: str = Field(default=DEFAULT_GATE, pattern=GATE_ID_PATTERN)
    repository: str = Field(default="", max_length=200, pattern=r"^[\x20-\x7e]*$")


class HistoryLine(_Line):
    """A verdict: a line of the history.

    `author` is who started the job, `runner` the machine, `environment` 16 digits of the digest of
    every part of the environment. `cancelled`: the call was stopped before it had a verdict, and
    `outcome` is that of an error. None, wherever it stands, is "not measured here".

    `strict_runs` is how many strict runs there were, 0 where an entry of the baseline answered
    alone. `digests_equal`: every captured tensor of two strict runs is the same. `metric` is the
    main metric and `last` its last value in decimal, empty where none was recorded; `spread` is
    the largest relative difference of any metric between strict runs. `uncovered_operators` counts
    those without a deterministic kernel. `data_verified`: every byte of the declared data was
    hashed, and is what the baseline has. `step_seconds` is a step of a strict run, the median;
    `training_seconds` the time in which a run was going, `seconds` that from the start of the call
    to the verdict. `cost_ratio` is the step time in strict mode over that in default mode.
    """

    kind: Literal["verdict"] = "verdict"
    author: Name = ""
    runner: Name = ""
    environment: str = Field(default="", pattern=r"^([0-9a-f]{16})?$")
    commit: str = Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")
    outcome: Outcome
    passes: bool
    cancelled: bool = False
    level: ReachedLevel | None = None
    failure_mode: FailureMode = FailureMode.NONE
    strict_runs: int | None = Field(default=None, ge=0, lt=2**31)
    digests_equal: bool | None = None
    metric: Name = ""
    last: str = Field(default="", max_length=40)
    spread: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    uncovered_operators: int | None = Field(default=None, ge=0, lt=2**31)
    data_verified: bool | None = None
    step_seconds: Seconds | None = None
    training_seconds: Seconds | None = None
    seconds: Seconds | None = None
    sealed: bool = False
    cost_ratio: float | None = Field(default=None, gt=0, lt=1e6, allow_inf_nan=False)


class RollbackLine(_Line):
    """A rollback: a line of the history; `commit` is empty where no package was taken.

    `succeeded`: its package verified and its model was handed out. `seconds` is how long that took.
    """

    kind: Literal["rollback"] = "rollback"
    commit: str = Field(default="", pattern=r"^([0-9a-f]{40}([0-9a-f]{24})?)?$")
    succeeded: bool
    seconds: Seconds | None = None


AnyLine = Annotated[HistoryLine | RollbackLine, Field(discriminator="kind")]


def line_bytes(line: HistoryLine | RollbackLine) -> bytes:
    """A line without its line end: canonical JSON without what was not measured."""
    return canonical_json(line.model_dump(mode="json", exclude_none=True))


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
    lines: list[HistoryLine] = []
    rows = data.splitlines()[-MAX_HISTORY_LINES:]
    for row in rows:
        try:
            line = read_document(HistoryLine, row, source, max_bytes=MAX_HISTORY_LINE_BYTES)
        # of another version, or by another hand: the others still tell something
        except DocumentError:
            continue
        lines.append(line)
    broken = len(rows) - len(lines)
    problem = f"{source}: {broken} of {len(rows)} lines are not readable" if broken else ""
    return History(lines=tuple(lines), problem=problem)


def with_line(data: bytes, line: HistoryLine) -> bytes:
    """A history file with one more line at its end; what is too old or too long is dropped.

    The lines that are there are not parsed, since the writer holds a token. A line that is there
    already is not written twice.
    """
    new = line_bytes(line)
    # all of ours are ASCII: the API takes text, and one foreign byte would stop every later line
    kept = [
        row
        for row in data.splitlines()
        if row and row.isascii() and len(row) <= MAX_HISTORY_LINE_BYTES
    ]
    if new not in kept:
        kept.append(new)
    return b"".join(row + b"\n" for row in kept[-MAX_HISTORY_LINES:])
