"""The records of a part's result: rows of a table, the machine, and how the part ended."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum


class Answer(StrEnum):
    """The answer of one row; only `failed` makes the whole check fail."""

    HELD = "held"
    FAILED = "failed"
    TOLD = "told"
    LEFT_OUT = "left out"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One check: what was looked at, its answer, and what was seen."""

    what: str
    answer: Answer
    told: str

    def line(self) -> str:
        """Return the row as one line of JSON."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """The machine on which the figures were measured; `gpu` is empty on a CPU."""

    gpu: str
    software: str
    processor: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PartResult:
    """The result of a part that ended, failed or timed out; `day` is the day of its start."""

    name: str
    title: str
    rows: tuple[Row, ...]
    seconds: float
    day: str

    @property
    def failed(self) -> bool:
        """True if any row failed."""
        return any(row.answer is Answer.FAILED for row in self.rows)

    @property
    def summary(self) -> str:
        """The number of rows with each answer, as a phrase."""
        counts = Counter(row.answer for row in self.rows)
        return ", ".join(f"{counts[answer]} {answer}" for answer in Answer if counts[answer])


def held(what: str, told: str, *, holds: bool = True) -> Row:
    """Return the row of a check that has to hold: held or failed."""
    return Row(what=what, answer=Answer.HELD if holds else Answer.FAILED, told=told)


def told(what: str, seen: str) -> Row:
    """Return the row of a fact or a figure, which cannot fail."""
    return Row(what=what, answer=Answer.TOLD, told=seen)


def left_out(what: str, why: str) -> Row:
    """Return the row of a check that this machine cannot make."""
    return Row(what=what, answer=Answer.LEFT_OUT, told=why)


def read_rows(lines: Iterable[str]) -> tuple[Row, ...]:
    """Return the rows of a file; a last line without a newline was cut off, and is ignored."""
    found = []
    for line in lines:
        if line.endswith("\n"):
            fields = json.loads(line)
            found.append(Row(**{**fields, "answer": Answer(fields["answer"])}))
    return tuple(found)
