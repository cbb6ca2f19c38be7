"""The history of a gate: what its earlier runs gave, as JSON Lines. It is informational only."""

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
# A non-ASCII character takes up to 12 bytes when escaped, so four names of 60 take 720 each.
MAX_HISTORY_LINE_BYTES: Final = 4000
MAX_HISTORY_BYTES: Final = MAX_HISTORY_LINES * MAX_HISTORY_LINE_BYTES
Name = Annotated[str, Field(max_length=60)]
Seconds = Annotated[float, Field(ge=0, lt=1e9, allow_inf_nan=False)]


class _Line(Document):
    """The fields that every line has.

    `run_id` names the job that wrote the line, empty where unknown.
    """

    schema_version: Literal["repro-gate.history/2"] = HISTORY_SCHEMA
    judged_at: Timestamp
    run_id: str = Field(default="", max_length=100, pattern=r"^[\x20-\x7e]*$")
    gate_id: str = Field(default=DEFAULT_GATE, pattern=GATE_ID_PATTERN)
    repository: str = Field(default="", max_length=200, pattern=r"^[\x20-\x7e]*$")


class HistoryLine(_Line):
    """A line of the history for one verdict.

    None in any field means "not measured here". `author` started the job. `runner` is the machine.
    `environment` is the first 16 hexadecimal digits of the digest over all parts of the
    environment. `cancelled`: the call was stopped before it had a verdict, and `outcome` is an
    error.

    `strict_runs` is the number of strict runs, 0 where a baseline entry answered without a run.
    `digests_equal`: every captured tensor of two strict runs is equal. `metric` is the main metric
    and `last` its last value in decimal, empty where none was recorded. `spread` is the largest
    relative difference of any metric between strict runs. `uncovered_operators` counts operators
    without a deterministic kernel. `data_verified`: every byte of the declared data was hashed and
    matches the baseline.

    `step_seconds` is the median time of a step of a strict run. `training_seconds` is the time
    during which a run was going, and `seconds` the time from the start of the call to the verdict.
    `cost_ratio` is the step time in strict mode divided by the step time in default mode.
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
    """A line of the history for one rollback; `commit` is empty where no package was chosen.

    `succeeded`: the package verified and its model was handed out. `seconds` is the time it took.
    """

    kind: Literal["rollback"] = "rollback"
    commit: str = Field(default="", pattern=r"^([0-9a-f]{40}([0-9a-f]{24})?)?$")
    succeeded: bool
    seconds: Seconds | None = None


AnyLine = Annotated[HistoryLine | RollbackLine, Field(discriminator="kind")]


def line_bytes(line: HistoryLine | RollbackLine) -> bytes:
    """Return a line without its line end: canonical JSON without fields that were not measured."""
    return canonical_json(line.model_dump(mode="json", exclude_none=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """The readable lines, oldest first; `problem` says what could not be read."""

    lines: tuple[HistoryLine, ...] = ()
    problem: str = ""


def history_file(gate_id: str) -> str:
    """Return the name of a gate's history file on the history branch."""
    return f"{gate_id}.jsonl"


def badge_file(gate_id: str) -> str:
    """Return the name of a gate's badge file on the history branch."""
    return f"{gate_id}.badge.json"


def read_history(data: bytes, source: str) -> History:
    """Return the last `MAX_HISTORY_LINES` lines; `problem` counts the unreadable ones.

    Raises `DocumentError` for a file that is longer than that number of the longest lines.
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
        # A line of a different version, or one written by hand. The remaining lines are still
        # useful.
        except DocumentError:
            continue
        lines.append(line)
    broken = len(rows) - len(lines)
    problem = f"{source}: {broken} of {len(rows)} lines are not readable" if broken else ""
    return History(lines=tuple(lines), problem=problem)


def with_line(data: bytes, line: HistoryLine) -> bytes:
    """Return a history file with one more line at its end, without lines that are too old or long.

    Existing lines are not parsed, because this process holds a token (T5). A line that is already
    there is not written again.
    """
    new = line_bytes(line)
    # The gate writes only ASCII lines. The API takes text, so one foreign byte would block every
    # later line.
    kept = [
        row
        for row in data.splitlines()
        if row and row.isascii() and len(row) <= MAX_HISTORY_LINE_BYTES
    ]
    if new not in kept:
        kept.append(new)
    return b"".join(row + b"\n" for row in kept[-MAX_HISTORY_LINES:])
