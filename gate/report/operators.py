"""The section about operators: what has no deterministic form, what the flag does not reach."""

from __future__ import annotations

from gate.records.census import CensusReport, OperatorRow
from gate.report.layout import Cell, Limits, Row, Section, table_of

HEADINGS = ("Operator", "Calls a step", "Steps", "Where", "Determinism", "What to do")
NOTHING_FOUND = (
    "nothing found: every operator seen has a deterministic form, or is not in the table"
)


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
    return (
        Cell(row.operator, code=True),
        Cell(row.calls_per_step),
        Cell(row.steps),
        Cell(row.where, code=True),
        Cell(row.flag),
        Cell(row.remedy),
    )
