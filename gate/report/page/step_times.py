"""The distribution of step times of each run, as boxes and dots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gate.report.page.curves import LEFT, WIDTH
from gate.report.page.page_sources import PageSources, style_of
from gate.report.page.scales import Scale, Tick, evenly, ticks
from gate.report.wording import count, duration
from gate.training.runs import RunMode

ROW_HEIGHT = 44
RIGHT, TOP, BOTTOM = 14, 8, 46
MAX_DOTS = 150
WIDE_RANGE = 8.0
# milliseconds from which on an axis shows no part of one
WHOLE = 1000
# dots of one height would hide each other; a fixed pattern keeps the page the same every time
HEIGHTS = (0, 7, 3, 9, 1, 5, 8, 2, 6, 4)
HOW_TO_READ = (
    "a box holds the middle half of the steps, its line is the median, whiskers reach from 5 % to "
    "95 %; the first steps are included"
)
SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedSteps:
    """What a row is drawn of: durations of steps in seconds, sorted."""

    label: str
    mode: RunMode
    seconds: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TimesRow:
    """One run: places of the shares of SHARES, of single steps, and the same in words."""

    label: str
    mode: str
    style: int
    top: int
    box: tuple[float, ...]
    dots: tuple[tuple[float, int], ...]
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TimesPicture:
    """The rows over one another on a common axis of durations."""

    rows: tuple[TimesRow, ...]
    x_ticks: tuple[Tick, ...]
    height: int
    notes: tuple[str, ...]


def step_times(sources: PageSources) -> TimesPicture | None:
    """Every timed step of every run, the first ones included; None when nothing was timed."""
    return times_picture(
        TimedSteps(
            label=run.run.label,
            mode=run.run.mode,
            seconds=tuple(sorted(run.timings.seconds)),
        )
        for run in sources.runs
    )


def times_picture(rows: Iterable[TimedSteps]) -> TimesPicture | None:
    """A box for each row that has steps; None when none has."""
    timed = [row for row in rows if row.seconds]
    if not timed:
        return None
    low = min(row.seconds[0] for row in timed)
    high = max(row.seconds[-1] for row in timed)
    # one slow first step would press all others into a corner of a linear axis
    wide = low > 0 and high / low > WIDE_RANGE
    x = Scale(low=low, high=high, start=LEFT, end=WIDTH - RIGHT, logarithmic=wide)
    notes = [HOW_TO_READ]
    if any(len(row.seconds) > MAX_DOTS for row in timed):
        notes.append(f"dots: {MAX_DOTS} steps of each run, evenly spaced by rank")
    if wide:
        notes.append("the axis is logarithmic")
    return TimesPicture(
        rows=tuple(_row(row, place, x) for place, row in enumerate(timed)),
        x_ticks=ticks(x, _milliseconds),
        height=TOP + ROW_HEIGHT * len(timed) + BOTTOM,
        notes=tuple(notes),
    )


def _milliseconds(seconds: float) -> str:
    """A duration as the axis shows it; its unit stands in the axis' title."""
    milliseconds = seconds * 1000
    return f"{milliseconds:,.0f}" if milliseconds >= WHOLE else f"{milliseconds:.3g}"


def _row(row: TimedSteps, place: int, x: Scale) -> TimesRow:
    seconds = row.seconds
    shares = [quantile(seconds, share) for share in SHARES]
    top = TOP + ROW_HEIGHT * place
    dots = evenly(len(seconds), MAX_DOTS)
    return TimesRow(
        label=row.label,
        mode=row.mode.value,
        style=style_of(row.label),
        top=top,
        box=tuple(x.at(value) for value in shares),
        dots=tuple(
            (x.at(seconds[dot]), top + 27 + HEIGHTS[place % len(HEIGHTS)])
            for place, dot in enumerate(dots)
        ),
        words=f"{row.label} ({row.mode.value} mode, {count(len(seconds), 'step')}): median "
        f"{duration(shares[2])}, 5 % {duration(shares[0])}, 95 % {duration(shares[4])}, "
        f"longest {duration(seconds[-1])}",
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value at that share of a sorted, not empty list, between neighbours in proportion."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
