"""Where a call's time went: one line for all readers, and a table of every stretch."""

from __future__ import annotations

from gate.report.layout import Cell, Limits, Row, Section, table_of
from gate.training.measured_timeline import OwnSpan, TimedRun, Timeline
from gate.verdict.verdict import Verdict

SHORT_SECONDS = 10.0
MINUTE, HOUR = 60, 3600
# from here on seconds say nothing that a reader wants
MANY_SECONDS = 600.0


def time_words(timeline: Timeline | None) -> str:
    """As `gate 41 s: trainings 36 s, own 4.8 s`; empty where no time was taken."""
    if timeline is None:
        return ""
    trainings, own = timeline.training_seconds, timeline.own_seconds
    return f"gate {long(timeline.seconds)}: trainings {long(trainings)}, own {long(own)}"


def long(seconds: float) -> str:
    """A time that a person waited, no more exactly than that matters."""
    if seconds < SHORT_SECONDS:
        return f"{seconds:.1f} s"
    if seconds < MANY_SECONDS:
        return f"{seconds:.0f} s"
    minutes = round(seconds / MINUTE)
    if seconds < HOUR:
        return f"{minutes} min"
    return f"{minutes // MINUTE} h {minutes % MINUTE} min"


def timeline_section(verdict: Verdict, limits: Limits) -> Section | None:
    """Each run and each stretch of the gate's own work, in the order in which they began."""
    timeline = verdict.timeline
    if timeline is None:
        return None
    rows = [
        *((run.begun_seconds, _run_row(run)) for run in timeline.runs),
        *((span.begun_seconds, _own_row(span)) for span in timeline.own),
    ]
    ordered = (row for _, row in sorted(rows, key=lambda pair: pair[0]))
    headings = ("What", "Lane", "From", "Until", "Took")
    table = table_of(headings, ordered, limits.rows, 2, 3, 4)
    title = f"Timeline ({table.total:,}): {time_words(timeline)}"
    # the footer of the comment says enough
    return Section(title=title, table=table, in_comment=False)


def _run_row(run: TimedRun) -> Row:
    stretch = _stretch(run.begun_seconds, run.ended_seconds)
    return (Cell(run.label, code=True), Cell(f"{run.lane + 1}"), *stretch)


def _own_row(span: OwnSpan) -> Row:
    words = f"{span.work.value} {span.about}".rstrip()
    return (Cell(words), Cell("gate"), *_stretch(span.begun_seconds, span.ended_seconds))


def _stretch(begun: float, ended: float) -> Row:
    return tuple(Cell(f"{seconds:,.2f} s") for seconds in (begun, ended, ended - begun))
