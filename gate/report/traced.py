"""What two operator traces say: one line for the comment, two sections for the page."""

from __future__ import annotations

from typing import Final

from gate.evidence.trace import TraceFinding, TraceRow
from gate.report.layout import Cell, Limits, Row, Section, Table, facts_table, table_of
from gate.verdict.verdict import Verdict

SHOWN_LINES: Final = 3


def traced_words(trace: TraceFinding, *, drift: bool) -> str:
    """What the first block says of a trace that found a call, without its full stop.

    Of a drift it says the place: what the operators do stands in the section.
    """
    if not drift or not trace.place:
        return f"Traced: {trace.sentence}"
    module = f", in module {trace.module}" if trace.module else ""
    return f"The first operator call that differs is at {trace.place}{module}"


def trace_sections(verdict: Verdict, limits: Limits) -> tuple[Section, ...]:
    """What is claimed and on what grounds; then both traces side by side around the point."""
    trace = verdict.diagnosis.trace if verdict.diagnosis is not None else None
    if trace is None:
        return ()
    facts = Section(
        title="Operator trace: where two traced runs part",
        table=_facts(trace, limits),
        leading=trace.found,
    )
    if not trace.rows:
        return (facts,)
    headings = ("First run", "Second run", "Line", "State")
    if trace.changed or trace.changed_later:
        headings = ("Base commit", "Head commit", "Line", "State")
    table = table_of(headings, map(_trace_row, trace.rows), limits.rows)
    return (facts, Section(title="Operator trace: both runs around the point", table=table))


def _facts(trace: TraceFinding, limits: Limits) -> Table:
    step = "" if trace.step is None else str(trace.step)
    facts = (
        ("What it shows", Cell(trace.sentence)),
        ("Claim", Cell(trace.claim.value)),
        ("Operator", Cell(trace.operator, code=True)),
        ("Instead of", Cell(trace.expected_operator, code=True)),
        ("Line", Cell(trace.place, code=True)),
        ("Line of the forward pass", Cell(trace.forward_place, code=True)),
        ("Module", Cell(trace.module, code=True)),
        ("Step and phase", Cell(f"{step} {trace.phase.value}".strip() if trace.phase else "")),
        ("Rank", Cell(str(trace.rank) if trace.rank else "")),
        ("Shapes", Cell(trace.shapes)),
        ("Device", Cell(trace.device)),
        ("Arguments", Cell(trace.arguments, code=True)),
        ("How far apart", Cell(_apart(trace))),
        ("Changed lines that ran before it", Cell(_places(trace, later=False))),
        ("Changed lines not seen to run before it", Cell(_places(trace, later=True))),
        ("What to do", Cell(trace.remedy)),
        *(("Note", Cell(note)) for note in trace.notes),
    )
    return facts_table(facts, limits.rows + SHOWN_LINES)


def _apart(trace: TraceFinding) -> str:
    if trace.absolute is None or trace.relative is None:
        return ""
    return (
        f"up to {trace.absolute:.3g} among sampled values, {trace.relative:.2g} of the largest one"
    )


def _places(trace: TraceFinding, *, later: bool) -> str:
    hunks = trace.changed_later if later else trace.changed
    words = [hunk.place + (" (lines removed behind it)" if hunk.removed else "") for hunk in hunks]
    rest = len(words) - SHOWN_LINES
    return ", ".join(words[:SHOWN_LINES]) + (f" and {rest} more" if rest > 0 else "")


def _trace_row(row: TraceRow) -> Row:
    state = f"here: {row.state}" if row.here else row.state
    return (
        Cell(row.expected, code=True),
        Cell(row.observed, code=True),
        Cell(row.place, code=True),
        Cell(state),
    )
