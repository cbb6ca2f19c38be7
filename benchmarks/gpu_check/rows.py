"""What a part finds: rows of a table, and how the part ended."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum


class Answer(StrEnum):
    """What became of one thing that was looked at; only `failed` fails the whole."""

    HELD = "held"
    FAILED = "failed"
    TOLD = "told"
    LEFT_OUT = "left out"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One thing that was looked at, and what was seen."""

    what: str
    answer: Answer
    told: str

    def line(self) -> str:
        """As one line of JSON."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What every figure was measured on. `gpu` is empty on a CPU."""

    gpu: str
    software: str
    processor: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PartResult:
    """A part that ended, in whatever way; `day` is that of its start."""

    name: str
    title: str
    rows: tuple[Row, ...]
    seconds: float
    day: str

    @property
    def failed(self) -> bool:
        """Whether something did not hold."""
        return any(row.answer is Answer.FAILED for row in self.rows)

    @property
    def summary(self) -> str:
        """How many rows gave which answer."""
        counts = Counter(row.answer for row in self.rows)
        return ", ".join(f"{counts[answer]} {answer}" for answer in Answer if counts[answer])


def held(what: str, told: str, *, holds: bool = True) -> Row:
    """A thing that has to hold, and whether it does."""
    return Row(what=what, answer=Answer.HELD if holds else Answer.FAILED, told=told)


def told(what: str, seen: str) -> Row:
    """A fact or a figure that nothing is asked of."""
    return Row(what=what, answer=Answer.TOLD, told=seen)


def left_out(what: str, why: str) -> Row:
    """A thing that this machine cannot show."""
    return Row(what=what, answer=Answer.LEFT_OUT, told=why)


def read_rows(lines: Iterable[str]) -> tuple[Row, ...]:
    """The rows of a file; a last line that was cut off is passed over."""
    found = []
    for line in lines:
        if line.endswith("\n"):
            fields = json.loads(line)
            found.append(Row(**{**fields, "answer": Answer(fields["answer"])}))
    return tuple(found)
