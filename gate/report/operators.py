"""The section about operators: what has no deterministic form, what the flag does not reach."""

from __future__ import annotations

from gate.records.census import CensusReport, OperatorRow
from gate.report.layout import Cell, Limits, Row, Section, table_of
from gate.report.wording import sentences

HEADINGS = ("Operator", "Calls a step", "Where", "Determinism, and what to do")
NOTHING_FOUND = "none found: torch raised no alert, and nothing of the project's own table was seen"


def operators_section(census: CensusReport | None, limits: Limits) -> Section | None:
    """Operators with their counts, places and remedies; None where there is nothing to tell."""
    if census is None or not (census.rows or census.complete):
        return None
    if census.rows:
        table = table_of(HEADINGS, map(_row, census.rows), limits.rows, 1)
    else:
        table = table_of(("Operators",), [(Cell(NOTHING_FOUND),)], limits.rows)
    extent = "counted in a run of its own" if census.complete else "not counted: no census run"
    dropped = f"; {census.dropped:,} calls found no room" if census.dropped else ""
    return Section(title=f"Operators ({len(census.rows):,}; {extent}{dropped})", table=table)


def _row(row: OperatorRow) -> Row:
    told = sentences(row.flag, row.remedy)
    return (
        Cell(row.operator, code=True),
        Cell(row.calls_per_step),
        Cell(f"{row.where}, steps {row.steps}" if row.where else "", code=True),
        Cell(f"{told} (Source: {row.source})" if row.source else told),
    )
