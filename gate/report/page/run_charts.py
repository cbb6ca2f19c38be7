"""Charts of the runs over their steps: metrics, memory, and the distribution of step times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gate.evidence.run_evidence import MetricSeries, RunEvidence
from gate.report.escape import NOTHING
from gate.report.layout import Cell, Table
from gate.report.page.curves import (
    LEFT,
    WIDTH,
    Chart,
    Line,
    Mark,
    Scale,
    Tick,
    chart,
    evenly,
    ticks,
)
from gate.report.page.page_sources import PageSources, differing, style_of
from gate.report.wording import THIS_CHANGE, duration
from gate.text.phrases import count
from gate.training.runs import FIRST_STRICT, Commit, RunMode
from gate.verdict.verdict import SeriesSummary, Verdict

MAX_VALUES = 60
GIBIBYTE = 2**30
MEMORY_UNIT = "GiB"


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricPicture:
    """A metric: its curves, the runs' distances from the reference, and a table of numbers."""

    name: str
    source: str
    last: str
    curves: Chart
    distances: Chart | None
    values: Table | None


def first_differences(verdict: Verdict) -> tuple[Mark, ...]:
    """Return the steps at which comparisons first differ, labelled with what differs."""
    pairs: dict[tuple[int, str], list[str]] = {}
    for comparison in differing(verdict):
        if comparison.first_step is not None:
            # equal runs are drawn as one curve, which has this name
            whole = comparison is not verdict.repeat and not _repeat_differs(verdict)
            key = comparison.first_step, THIS_CHANGE if whole else comparison.observed
            pairs.setdefault(key, []).append(comparison.expected)
    return tuple(
        Mark(step=step, label=f"step {step}: {observed} ≠ {', '.join(others)}")
        for (step, observed), others in pairs.items()
    )


def _repeat_differs(verdict: Verdict) -> bool:
    return verdict.repeat is None or verdict.repeat.differs


def metric_picture(
    summary: SeriesSummary, sources: PageSources, marks: tuple[Mark, ...]
) -> MetricPicture:
    """Return one metric with all runs that have it, or without evidence the verdict's own curve."""
    known = sources.series(summary.name)
    if known:
        return series_picture(known, summary.last_decimal, marks, own=_own_runs(sources))
    return MetricPicture(
        name=summary.name,
        source=summary.source,
        last=summary.last_decimal,
        curves=chart(summary.name, (_summary_line(summary),), marks),
        distances=None,
        values=None,
    )


def _own_runs(sources: PageSources) -> frozenset[str]:
    """Return this change's complete runs, without interrupted and resumed ones."""
    steps = len(sources.reference.steps) if sources.reference is not None else 0
    return frozenset(
        run.run.label
        for run in sources.runs
        if run.run.commit is Commit.HEAD and len(run.steps) == steps
    )


def series_picture(
    known: tuple[tuple[str, MetricSeries], ...],
    last: str,
    marks: tuple[Mark, ...],
    *,
    own: frozenset[str] = frozenset(),
) -> MetricPicture:
    """Return one metric of several named sides; the others are compared with the first.

    Equal sides become one curve. `own` are the names of this change's runs.
    """
    drawn = _drawn_once(known, own)
    against, named = known[0][1], drawn[0].name
    apart = {
        curve.name: _distance(curve, against)
        for curve in drawn[1:]
        if _first_apart(curve.series, against) is not None
    }
    lines = tuple(_line(curve, drawn[0], apart.get(curve.name)) for curve in drawn)
    # A series that only ends earlier has no distance at any common step.
    distant = tuple(line for line in apart.values() if any(line.values))
    return MetricPicture(
        name=against.name,
        source=against.source.value,
        last=last,
        curves=chart(against.name, lines, marks),
        distances=chart(
            f"{against.name}: distance from {named}",
            distant,
            y_title=f"distance from {named}, logarithmic",
            distances=True,
        )
        if distant
        else None,
        values=_values(known),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Drawn:
    """A curve: its name, its first side (for the style), its equal sides, and its numbers."""

    name: str
    first: str
    equal: str
    series: MetricSeries


def _drawn_once(known: tuple[tuple[str, MetricSeries], ...], own: frozenset[str]) -> list[_Drawn]:
    """Return one curve for all sides with equal numbers, in the order of their first sides."""
    groups: list[list[tuple[str, MetricSeries]]] = []
    for side in known:
        # a step that only one side has makes the sides different curves
        same = (group for group in groups if _first_apart(side[1], group[0][1]) is None)
        group = next(same, None)
        groups.append([side]) if group is None else group.append(side)
    of_this = [label for label, _ in known if label in own]
    return [_one_curve([label for label, _ in group], group[0][1], of_this) for group in groups]


def _one_curve(labels: list[str], series: MetricSeries, of_this: list[str]) -> _Drawn:
    runs = [label for label in labels if label in of_this]
    rest = [label for label in labels[1:] if label not in of_this]
    name, equal = labels[0], ""
    if len(runs) == len(of_this) > 1:
        name, equal = THIS_CHANGE, f"{count(len(runs), 'run')}, identical"
    else:
        rest = labels[1:]
    if rest:
        equal = f"{equal}{'; ' if equal else ''}equal to {', '.join(rest)}, bit for bit"
    return _Drawn(name=name, first=labels[0], equal=equal, series=series)


def _summary_line(summary: SeriesSummary) -> Line:
    values = tuple(math.nan if value is None else value for value in summary.values)
    return Line(
        name=FIRST_STRICT,
        style=0,
        steps=summary.steps,
        values=values,
        words=_ends(summary.last_decimal),
    )


def _ends(last: str) -> str:
    return f"last {last}" if last else "no value"


def _line(curve: _Drawn, reference: _Drawn, apart: Line | None) -> Line:
    points = curve.series.points
    words = "; ".join(filter(None, (curve.equal, _ends(points[-1].decimal if points else ""))))
    if apart is not None:
        first = _first_apart(curve.series, reference.series)
        words += f"; differs from {reference.name} from step {first} on"
        # steps that only one side has give no distance
        words += f": {apart.words}" if any(apart.values) else ""
    return Line(
        name=curve.name,
        style=style_of(curve.first),
        steps=points.steps,
        values=points.values,
        words=words,
    )


def _first_apart(series: MetricSeries, reference: MetricSeries) -> int | None:
    """Return the first step at which two series differ, or which only one of them has."""
    if series.points == reference.points:
        return None
    ours, theirs = dict(series.points.pairs()), dict(reference.points.pairs())
    apart = (step for step in ours.keys() | theirs.keys() if not _same(ours, theirs, step))
    return min(apart, default=None)


def _same(ours: dict[int, float], theirs: dict[int, float], step: int) -> bool:
    both = step in ours and step in theirs
    return both and ours[step].hex() == theirs[step].hex()


def _distance(curve: _Drawn, reference: MetricSeries) -> Line:
    """Return the absolute difference at common steps; zero where the bits are equal."""
    theirs = dict(reference.points.pairs())
    ours = [(step, value) for step, value in curve.series.points.pairs() if step in theirs]
    values = tuple(_apart(value, theirs[step]) for step, value in ours)
    largest = max((value for value in values if math.isfinite(value)), default=0.0)
    equal = sum(value == 0 for value in values)
    return Line(
        name=curve.name,
        style=style_of(curve.first),
        steps=tuple(step for step, _ in ours),
        values=values,
        words=f"by {largest:.3g} at most, equal at {count(equal, 'step')} of {len(values):,}",
    )


def _apart(left: float, right: float) -> float:
    # Equal infinities count as equal: their difference would be NaN, which is drawn as a gap.
    return 0.0 if left.hex() == right.hex() else abs(left - right)


def _values(labelled: tuple[tuple[str, MetricSeries], ...]) -> Table:
    """Return the numbers at full precision, at most `MAX_VALUES` evenly spaced steps."""
    steps = sorted({step for _, series in labelled for step in series.points.steps})
    shown = {steps[place]: None for place in evenly(len(steps), MAX_VALUES)}
    columns = [
        {step: repr(value) for step, value in series.points.pairs() if step in shown}
        for _, series in labelled
    ]
    rows = tuple(
        (Cell(str(step)), *(Cell(column.get(step, NOTHING)) for column in columns))
        for step in shown
    )
    headings = ("Step", *(label for label, _ in labelled))
    right = tuple(range(len(headings)))
    return Table(headings=headings, rows=rows, total=len(steps), right=right)


def memory_charts(sources: PageSources) -> tuple[Chart, ...]:
    """Return charts of the memory after each step in GiB: host, and device if one was used."""
    runs = [run for run in sources.runs if run.memory]
    if not runs:
        return ()
    on_host = chart(
        "Resident memory of the process",
        tuple(_memory(run, run.memory.resident_bytes) for run in runs),
        y_title=MEMORY_UNIT,
    )
    on_device = [run for run in runs if any(run.memory.device_bytes)]
    if not on_device:
        return (on_host,)
    lines = tuple(_memory(run, run.memory.device_bytes) for run in on_device)
    title = "Memory allocated on the device (not reserved)"
    return on_host, chart(title, lines, y_title=MEMORY_UNIT)


def _memory(run: RunEvidence, sizes_bytes: Sequence[int]) -> Line:
    return Line(
        name=run.run.label,
        style=style_of(run.run.label),
        steps=run.memory.steps,
        values=tuple(size / GIBIBYTE for size in sizes_bytes),
        words=f"highest {max(sizes_bytes) / GIBIBYTE:,.3f} {MEMORY_UNIT}",
    )


ROW_HEIGHT = 44
RIGHT, TOP, BOTTOM = 14, 8, 46
MAX_DOTS = 150
WIDE_RANGE = 8.0
# from this many milliseconds on, an axis shows no fraction
WHOLE = 1000
# Dots of one height would hide each other. The pattern is fixed, so that equal verdicts give equal
# pages.
HEIGHTS = (0, 7, 3, 9, 1, 5, 8, 2, 6, 4)
HOW_TO_READ = (
    "A box holds the middle half of the steps, its line is the median, and whiskers reach from 5 % "
    "to 95 %. The first steps are included."
)
SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedSteps:
    """The data of a row: durations of steps in seconds, sorted."""

    label: str
    mode: RunMode
    seconds: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TimesRow:
    """One row: positions of the shares in SHARES and of single steps, and the same in words."""

    label: str
    mode: str
    style: int
    top: int
    box: tuple[float, ...]
    dots: tuple[tuple[float, int], ...]
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TimesPicture:
    """All rows on a common axis of durations."""

    rows: tuple[TimesRow, ...]
    x_ticks: tuple[Tick, ...]
    height: int
    notes: tuple[str, ...]


def step_times(sources: PageSources) -> TimesPicture | None:
    """Return every timed step of every run, including the first ones; None if none was timed."""
    return times_picture(
        TimedSteps(
            label=run.run.label,
            mode=run.run.mode,
            seconds=tuple(sorted(run.timings.seconds)),
        )
        for run in sources.runs
    )


def times_picture(rows: Iterable[TimedSteps]) -> TimesPicture | None:
    """Return a box for each row that has steps, or None if no row has any."""
    timed = [row for row in rows if row.seconds]
    if not timed:
        return None
    low = min(row.seconds[0] for row in timed)
    high = max(row.seconds[-1] for row in timed)
    # On a linear axis, one slow first step would squeeze all others into a corner.
    wide = low > 0 and high / low > WIDE_RANGE
    x = Scale(low=low, high=high, start=LEFT, end=WIDTH - RIGHT, logarithmic=wide)
    notes = [HOW_TO_READ]
    if any(len(row.seconds) > MAX_DOTS for row in timed):
        notes.append(f"The dots are {MAX_DOTS} steps of each run, evenly spaced by rank.")
    if wide:
        notes.append("The axis is logarithmic.")
    return TimesPicture(
        rows=tuple(_row(row, place, x) for place, row in enumerate(timed)),
        x_ticks=ticks(x, _milliseconds),
        height=TOP + ROW_HEIGHT * len(timed) + BOTTOM,
        notes=tuple(notes),
    )


def _milliseconds(seconds: float) -> str:
    """Return a duration for an axis, whose title gives the unit."""
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
    """Return the quantile of a sorted, non-empty list, interpolated between neighbours."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
