"""Earlier runs drawn: a strip of verdicts, and what the loss and the cost did from run to run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from gate.report.entry_words import SHOWN_RUNS
from gate.report.page.curves import LEFT, RIGHT, WIDTH, Chart, Line, chart
from gate.report.page.scales import Scale, Tick, evenly
from gate.report.wording import SHORT_COMMIT, count, percent
from gate.verdict.published_history import HistoryLine
from gate.verdict.verdict import Outcome

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
