"""What the runs did over their steps: each metric with all runs in one picture, and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gate.evidence.run_evidence import MetricSeries, RunEvidence
from gate.report.escape import NOTHING
from gate.report.layout import Cell, Table
from gate.report.page.curves import Chart, Line, Mark, chart
from gate.report.page.page_sources import PageSources, differing, style_of
from gate.report.page.scales import evenly
from gate.report.wording import count
from gate.training.runs import FIRST_STRICT
from gate.verdict.verdict import SeriesSummary, Verdict

MAX_VALUES = 60
GIBIBYTE = 2**30
MEMORY_UNIT = "GiB"


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricPicture:
    """A metric: its curves, how far the runs are from the reference, and the numbers themselves."""

    name: str
    source: str
    last: str
    curves: Chart
    distances: Chart | None
    values: Table | None


def first_differences(verdict: Verdict) -> tuple[Mark, ...]:
    """The steps at which comparisons first differ, each with what differs there from what."""
    pairs: dict[tuple[int, str], list[str]] = {}
    for comparison in differing(verdict):
        if comparison.first_step is not None:
            key = comparison.first_step, comparison.observed
            pairs.setdefault(key, []).append(comparison.expected)
    return tuple(
        Mark(step=step, label=f"step {step}: {observed} ≠ {', '.join(others)}")
        for (step, observed), others in pairs.items()
    )


def metric_picture(
    summary: SeriesSummary, sources: PageSources, marks: tuple[Mark, ...]
) -> MetricPicture:
    """One metric of the verdict with all runs that have it; without evidence its own curve."""
    known = sources.series(summary.name)
    if known:
        return series_picture(known, summary.last_decimal, marks)
    return MetricPicture(
        name=summary.name,
        source=summary.source,
        last=summary.last_decimal,
        curves=chart(summary.name, (_summary_line(summary),), marks),
        distances=None,
        values=None,
    )


def series_picture(
    known: tuple[tuple[str, MetricSeries], ...], last: str, marks: tuple[Mark, ...]
) -> MetricPicture:
    """One metric of several sides by their names; the first is what the others are held against."""
    reference, against = known[0]
    apart = {
        label: _distance(label, series, against)
        for label, series in known[1:]
        if _first_apart(series, against) is not None
    }
    lines = tuple(_line(label, series, known[0], apart.get(label)) for label, series in known)
    # a series that only ends earlier is nowhere at a distance
    distant = tuple(line for line in apart.values() if any(line.values))
    return MetricPicture(
        name=against.name,
        source=against.source.value,
        last=last,
        curves=chart(against.name, lines, marks),
        distances=chart(
            f"{against.name}: distance from {reference}",
            distant,
            y_title=f"distance from {reference}, logarithmic",
            distances=True,
        )
        if distant
        else None,
        values=_values(known),
    )


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


def _line(
    label: str, series: MetricSeries, against: tuple[str, MetricSeries], apart: Line | None
) -> Line:
    name, reference = against
    words = _ends(series.points[-1].decimal if series.points else "")
    if apart is not None:
        words += f"; differs from {name} from step {_first_apart(series, reference)} on"
        # no distance at a step that only one of them has
        words += f": {apart.words}" if any(apart.values) else ""
    elif series is not reference:
        words += f"; equal to {name}, bit for bit"
    return Line(
        name=label,
        style=style_of(label),
        steps=series.points.steps,
        values=series.points.values,
        words=words,
    )


def _first_apart(series: MetricSeries, reference: MetricSeries) -> int | None:
    """The first step at which two series differ, a step that only one of them has included."""
    if series.points == reference.points:
        return None
    ours, theirs = dict(series.points.pairs()), dict(reference.points.pairs())
    apart = (step for step in ours.keys() | theirs.keys() if not _same(ours, theirs, step))
    return min(apart, default=None)


def _same(ours: dict[int, float], theirs: dict[int, float], step: int) -> bool:
    both = step in ours and step in theirs
    return both and ours[step].hex() == theirs[step].hex()


def _distance(label: str, series: MetricSeries, reference: MetricSeries) -> Line:
    """The absolute difference at the steps that both have; zero where the bits are equal."""
    theirs = dict(reference.points.pairs())
    ours = [(step, value) for step, value in series.points.pairs() if step in theirs]
    values = tuple(_apart(value, theirs[step]) for step, value in ours)
    largest = max((value for value in values if math.isfinite(value)), default=0.0)
    equal = sum(value == 0 for value in values)
    return Line(
        name=label,
        style=style_of(label),
        steps=tuple(step for step, _ in ours),
        values=values,
        words=f"by {largest:.3g} at most, equal at {count(equal, 'step')} of {len(values):,}",
    )


def _apart(left: float, right: float) -> float:
    # equal infinities are equal: their difference would be NaN, and drawn as a gap
    return 0.0 if left.hex() == right.hex() else abs(left - right)


def _values(labelled: tuple[tuple[str, MetricSeries], ...]) -> Table:
    """The numbers at full precision; of many steps some, evenly spaced."""
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
    """Memory after each step in GiB: resident on the host, and on the device when one was used."""
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
