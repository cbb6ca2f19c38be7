"""A call's time as lanes, and earlier runs as a strip of verdicts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from gate.report.entry_words import SHOWN_RUNS
from gate.report.judged import long, time_words
from gate.report.page.curves import LEFT, RIGHT, WIDTH, Chart, Line, Scale, Tick, chart, evenly
from gate.report.page.page_sources import style_of
from gate.report.wording import SHORT_COMMIT, count, percent
from gate.training.timeline import TimedRun, Timeline
from gate.verdict.history import HistoryLine
from gate.verdict.verdict import Outcome

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


CELL_WIDTH, SHAPE_Y, LETTER_Y, HEIGHT = 32, 14, 42, 72
DAY_CHARACTERS = 10
DATES = 3
LEAST_POINTS = 2


class Verdicts(StrEnum):
    """How a run ended, as the strip shows it; the value is its class, and so shape and colour."""

    PASSED = "passed"
    FAILED = "failed"
    UNREPEATED = "unrepeated"
    STOPPED = "stopped"


# letter and words: the strip can be read without its colours and without its shapes
LETTERS = {
    Verdicts.PASSED: ("P", "passed"),
    Verdicts.FAILED: ("F", "failed"),
    Verdicts.UNREPEATED: ("N", "did not repeat"),
    Verdicts.STOPPED: ("E", "error"),
}
# round the middle of a cell: a disc, a square, a triangle, a cross
SHAPES = {
    Verdicts.PASSED: "m-9,0a9,9 0 1,0 18,0a9,9 0 1,0 -18,0",
    Verdicts.FAILED: "m-8,-8h16v16h-16z",
    Verdicts.UNREPEATED: "m0,-9l10,18h-20z",
    Verdicts.STOPPED: "m-9,-5l4,-4l5,5l5,-5l4,4l-5,5l5,5l-4,4l-5,-5l-5,5l-4,-4l5,-5z",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class StripCell:
    """One run: its place, its look, and what a pointer on it is told."""

    x: float
    kind: str
    letter: str
    path: str
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryPicture:
    """The last runs, the newest at the right, and curves over all of them that are kept."""

    title: str
    width: int
    cells: tuple[StripCell, ...]
    first_day: str
    last_day: str
    legend: tuple[StripCell, ...]
    charts: tuple[Chart, ...]


def history_picture(lines: tuple[HistoryLine, ...]) -> HistoryPicture | None:
    """The pictures of a history, or None where there is none."""
    if not lines:
        return None
    shown = lines[-SHOWN_RUNS:]
    kinds = Counter(map(_kind, shown))
    return HistoryPicture(
        title=f"Last {count(len(shown), 'verdict')} on the default branch",
        width=CELL_WIDTH * SHOWN_RUNS,
        cells=tuple(
            _cell(_kind(line), _middle(place), _words(line)) for place, line in enumerate(shown)
        ),
        first_day=_day(shown[0]),
        last_day=_day(shown[-1]),
        legend=tuple(
            _cell(kind, SHAPE_Y, f"{letter}: {words}, {count(kinds[kind], 'run')}")
            for kind, (letter, words) in LETTERS.items()
            if kinds[kind]
        ),
        charts=tuple(drawn for drawn in (_loss(lines), _cost(lines)) if drawn is not None),
    )


def _kind(line: HistoryLine) -> Verdicts:
    if line.outcome is Outcome.ERROR:
        return Verdicts.STOPPED
    if line.outcome is Outcome.NONDETERMINISTIC:
        return Verdicts.UNREPEATED
    return Verdicts.PASSED if line.passes else Verdicts.FAILED


def _cell(kind: Verdicts, x: float, words: str) -> StripCell:
    letter, path = LETTERS[kind][0], f"M{x},{SHAPE_Y}{SHAPES[kind]}"
    return StripCell(x=x, kind=kind.value, letter=letter, path=path, words=words)


def _middle(place: int) -> float:
    return CELL_WIDTH * (place + 0.5)


def _words(line: HistoryLine) -> str:
    return f"{_day(line)} {line.commit[:SHORT_COMMIT]} {line.outcome.value}"


def _day(line: HistoryLine) -> str:
    return line.judged_at[:DAY_CHARACTERS]


def _loss(lines: tuple[HistoryLine, ...]) -> Chart | None:
    """The last value of the main metric; a run of another metric has no point."""
    metric = next((line.metric for line in reversed(lines) if line.last), "")
    values = {
        place: value
        for place, line in enumerate(lines)
        if line.metric == metric and math.isfinite(value := _number(line.last))
    }
    title = f"last value of {metric}"
    return _over_runs(title, "last value", lines, values, lambda value: f"{value:.6g}")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _cost(lines: tuple[HistoryLine, ...]) -> Chart | None:
    """The time that strict mode takes on top of default mode."""
    values = {
        place: (line.cost_ratio - 1) * 100
        for place, line in enumerate(lines)
        if line.cost_ratio is not None
    }
    y_title = "strict mode takes longer by, %"
    return _over_runs(
        "cost of determinism", y_title, lines, values, lambda value: percent(1 + value / 100)
    )


def _over_runs(
    title: str,
    y_title: str,
    lines: tuple[HistoryLine, ...],
    values: dict[int, float],
    shown: Callable[[float], str],
) -> Chart | None:
    """A curve over the runs, with their days below it; one point alone is no curve."""
    if len(values) < LEAST_POINTS:
        return None
    places, points = tuple(values), tuple(values.values())
    words = (
        f"{count(len(points), 'run')}, now {shown(points[-1])}, "
        f"lowest {shown(min(points))}, highest {shown(max(points))}"
    )
    drawn = chart(
        title,
        (Line(name="", style=0, steps=places, values=points, words=words),),
        y_title=y_title,
    )
    x = Scale(low=places[0], high=places[-1], start=LEFT, end=WIDTH - RIGHT)
    days = (places[place] for place in evenly(len(places), DATES))
    return replace(
        drawn,
        over="over the runs on the default branch",
        x_title="runs on the default branch, by day",
        x_ticks=tuple(Tick(position=x.at(place), label=_day(lines[place])) for place in days),
    )
