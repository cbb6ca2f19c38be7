"""The timeline of a call: when its trainings ran, and when the gate itself worked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum

from pydantic import Field

from gate.system.clock import Clock
from gate.text.document import Document


class OwnWork(StrEnum):
    """What the gate itself does in a call before the verdict.

    `PREPARING` is the beginning of the call or, with a run, the making of its folders. `KEEPING`
    checks the snapshots again and writes the evidence.
    """

    PREPARING = "preparing"
    READING = "reading"
    KEEPING = "keeping"
    JUDGING = "judging"
    CLEANING = "cleaning up"


class TimedRun(Document):
    """A run from the moment when it was let go to its end, in seconds since the call began.

    `lane` distinguishes runs that went at the same time.
    """

    label: str
    lane: int = Field(default=0, ge=0)
    begun_seconds: float = Field(ge=0)
    ended_seconds: float = Field(ge=0)


class OwnSpan(Document):
    """A span of the gate's own work, in seconds since the call began; `about` names the run."""

    work: OwnWork
    about: str = ""
    begun_seconds: float = Field(ge=0)
    ended_seconds: float = Field(ge=0)


class Timeline(Document):
    """Where a call's time went, from its start to its verdict.

    During `training_seconds` of its `seconds` at least one run was going; `own_seconds` are the
    rest. `runs` has all runs, including those that failed or are not judged. `own` is the gate's
    own measured work, which may overlap with a run.
    """

    seconds: float = Field(ge=0)
    training_seconds: float = Field(ge=0)
    own_seconds: float = Field(ge=0)
    runs: tuple[TimedRun, ...] = ()
    own: tuple[OwnSpan, ...] = ()


Stretch = tuple[float, float]
DECIMALS = 3


class CallTime:
    """Measures how a call spends its time; the call begins when this object is made."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start = clock.seconds()
        self._runs: list[TimedRun] = []
        self._own: list[OwnSpan] = []

    @property
    def seconds(self) -> float:
        """The seconds since the call began."""
        return self.at(self._clock.seconds())

    def at(self, clock_seconds: float) -> float:
        """Return the seconds from the call's beginning to another moment of the same clock."""
        return round(max(0.0, clock_seconds - self._start), DECIMALS)

    @contextmanager
    def own(self, work: OwnWork, about: str = "") -> Iterator[None]:
        """Record the body as the gate's own work, however it ends; `about` names the run."""
        begun = self.seconds
        try:
            yield
        finally:
            ended = max(begun, self.seconds)
            span = OwnSpan(work=work, about=about, begun_seconds=begun, ended_seconds=ended)
            self._own.append(span)

    def ran(self, label: str, *, begun_seconds: float, wall_seconds: float, lane: int = 0) -> None:
        """Record a run that was let go at `begun_seconds` and took `wall_seconds`."""
        ended = round(begun_seconds + wall_seconds, DECIMALS)
        run = TimedRun(label=label, lane=lane, begun_seconds=begun_seconds, ended_seconds=ended)
        self._runs.append(run)

    def timeline(self) -> Timeline:
        """Return the timeline up to now."""
        runs = tuple(sorted(self._runs, key=lambda run: (run.begun_seconds, run.lane)))
        going = covered((run.begun_seconds, run.ended_seconds) for run in runs)
        # a run's own clock may show a little more than two readings of this one
        seconds = max([self.seconds, *(run.ended_seconds for run in runs)])
        return Timeline(
            seconds=seconds,
            training_seconds=round(going, DECIMALS),
            own_seconds=round(max(0.0, seconds - going), DECIMALS),
            runs=runs,
            own=tuple(sorted(self._own, key=lambda span: span.begun_seconds)),
        )


def covered(stretches: Iterable[Stretch]) -> float:
    """Return how many seconds are in at least one stretch; overlaps count once."""
    total, reached = 0.0, float("-inf")
    for begun, ended in sorted(stretches):
        total += max(0.0, ended - max(begun, reached))
        reached = max(reached, ended)
    return total
