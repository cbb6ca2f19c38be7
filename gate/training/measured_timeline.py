"""When what went on in a call: its trainings, and the gate's own work."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from gate.text.records_document import Document


class OwnWork(StrEnum):
    """What the gate itself does in a call until there is a verdict.

    `PREPARING` is the call's beginning and, about a run, its folders; `KEEPING` looks at the
    snapshots once more and writes the evidence.
    """

    PREPARING = "preparing"
    READING = "reading"
    KEEPING = "keeping"
    JUDGING = "judging"
    CLEANING = "cleaning up"


class TimedRun(Document):
    """A run from the moment when it was let go to its end, in seconds since the call began.

    `lane` tells apart runs that went at the same time.
    """

    label: str
    lane: int = Field(default=0, ge=0)
    begun_seconds: float = Field(ge=0)
    ended_seconds: float = Field(ge=0)


class OwnSpan(Document):
    """A stretch of the gate's own work, in seconds since the call began; `about` names the run."""

    work: OwnWork
    about: str = ""
    begun_seconds: float = Field(ge=0)
    ended_seconds: float = Field(ge=0)


class Timeline(Document):
    """Where a call's time went, from its start to its verdict.

    Of its `seconds` at least one run was going in `training_seconds`; `own_seconds` are the rest.
    `runs` holds all of them, also those that failed or are not judged. `own` is what was measured
    of the gate's own work, which may go on beside a run.
    """

    seconds: float = Field(ge=0)
    training_seconds: float = Field(ge=0)
    own_seconds: float = Field(ge=0)
    runs: tuple[TimedRun, ...] = ()
    own: tuple[OwnSpan, ...] = ()
