"""What a result depends on that it should not: the file `shake.json`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from gate.comparison.differences import Event
from gate.comparison.measurements import Provenance
from gate.text.records_document import Document

SHAKEN_SCHEMA: Final = "repro-gate.shake/1"
MAX_READINGS: Final = 20
MAX_TEXT: Final = 1000


class ShakeResult(StrEnum):
    """What came of a variation.

    `equal`: the same result, bit for bit; `differs`: another one; `fails`: the run failed;
    `not-tried`: nothing was varied, or nothing could be compared.
    """

    EQUAL = "equal"
    DIFFERS = "differs"
    FAILS = "fails"
    NOT_TRIED = "not-tried"


class ReadingLine(Document):
    """A line of the training's code that read what was varied, and what it called.

    `step` is the optimizer step at which it was first seen. Whether a line `in_code` ran is not
    known: it was found by looking through the file.
    """

    place: str
    call: str
    step: int
    in_code: bool = False


class ShakenThing(Document):
    """One variation. `first` is the first divergence from the run without it.

    `readings` are the lines seen up to there; none where the result is equal. `reason` says why it
    was not tried, or how the run failed.
    """

    name: str
    changes: str
    varied: str = ""
    result: ShakeResult
    first: Event | None = None
    readings: Annotated[tuple[ReadingLine, ...], Field(max_length=MAX_READINGS)] = ()
    reason: str = Field(default="", max_length=MAX_TEXT)
    remedy: str = ""
    wall_seconds: float | None = None

    @property
    def depends(self) -> bool:
        """Whether the result depends on it."""
        return self.result in {ShakeResult.DIFFERS, ShakeResult.FAILS}

    @property
    def tried(self) -> bool:
        """Whether there is a result."""
        return self.result is not ShakeResult.NOT_TRIED


class ShakenTraining(Document):
    """The file `shake.json`: each variation against the first of two runs in which nothing varies.

    `repeatable` is False where runs without a variation differ, at `first`: then no difference can
    be put down to a variation, and `things` counts for nothing. Seconds are wall time.
    """

    schema_version: Literal["repro-gate.shake/1"] = SHAKEN_SCHEMA
    provenance: Provenance
    repeatable: bool
    first: Event | None = None
    things: tuple[ShakenThing, ...]
    budget_seconds: float | None = None

    @property
    def dependent(self) -> tuple[ShakenThing, ...]:
        """What the result depends on."""
        return tuple(thing for thing in self.things if thing.depends)

    @property
    def tried(self) -> tuple[ShakenThing, ...]:
        """What was varied and compared."""
        return tuple(thing for thing in self.things if thing.tried)
