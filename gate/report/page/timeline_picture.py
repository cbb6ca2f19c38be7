"""A call's time as lanes: a row for the gate's own work, and one for each run."""

from __future__ import annotations

from dataclasses import dataclass

from gate.report.page.page_sources import style_of
from gate.report.time_words import long, time_words
from gate.training.measured_timeline import TimedRun, Timeline

MAX_LANES = 24
OWN = "gate"
# a bar that is narrower would not be seen, in percent
LEAST_WIDTH = 0.3


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A stretch of time; both numbers are percent of the whole."""

    left: float
    width: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """A row: what it is of, its bars, when it began and how long it took; `style` is a look."""

    label: str
    bars: tuple[Bar, ...]
    began: str
    took: str
    style: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TimelinePicture:
    """The rows over one another on a common axis, which ends at `end`."""

    title: str
    end: str
    lanes: tuple[Lane, ...]
    omitted: int
    notes: tuple[str, ...]


def timeline_picture(timeline: Timeline | None) -> TimelinePicture | None:
    """One lane for each run, in the order in which they began; None where no time was taken."""
    if timeline is None or timeline.seconds <= 0:
        return None
    shown = timeline.runs[:MAX_LANES]
    return TimelinePicture(
        title=time_words(timeline),
        end=long(timeline.seconds),
        lanes=(_own_lane(timeline), *(_lane(run, timeline.seconds) for run in shown)),
        omitted=len(timeline.runs) - len(shown),
        notes=_notes(timeline),
    )


def _lane(run: TimedRun, whole: float) -> Lane:
    return Lane(
        label=run.label,
        bars=(_bar(run.begun_seconds, run.ended_seconds, whole),),
        began=long(run.begun_seconds),
        took=long(run.ended_seconds - run.begun_seconds),
        style=style_of(run.label),
    )


def _own_lane(timeline: Timeline) -> Lane:
    """When no run was going."""
    return Lane(
        label=OWN,
        bars=tuple(_bar(begun, ended, timeline.seconds) for begun, ended in _gaps(timeline)),
        began=long(0.0),
        took=long(timeline.own_seconds),
    )


def _gaps(timeline: Timeline) -> list[tuple[float, float]]:
    reached, found = 0.0, []
    stretches = sorted((run.begun_seconds, run.ended_seconds) for run in timeline.runs)
    for begun, ended in (*stretches, (timeline.seconds, timeline.seconds)):
        if begun > reached:
            found.append((reached, begun))
        reached = max(reached, ended)
    return found


def _bar(begun: float, ended: float, whole: float) -> Bar:
    left = round(100 * begun / whole, 2)
    width = max(LEAST_WIDTH, round(100 * (ended - begun) / whole, 2))
    # one that begins at the very end is drawn there and not behind it
    return Bar(left=min(left, 100 - width), width=width)


def _notes(timeline: Timeline) -> tuple[str, ...]:
    """What is known of the gate's own work, also of what it did while a run was going."""
    works: dict[str, float] = {}
    for span in timeline.own:
        took = span.ended_seconds - span.begun_seconds
        works[span.work.value] = works.get(span.work.value, 0.0) + took
    words = ", ".join(f"{work} {long(seconds)}" for work, seconds in works.items())
    first = f"{OWN}: when no run was going; counted until the verdict, without packing and sealing"
    return (first, f"its own work, some of it beside a run: {words}") if words else (first,)
