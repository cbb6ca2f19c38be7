"""The section about operators: what has no deterministic form, what the flag does not cover."""

from __future__ import annotations

from gate.evidence.operators import OperatorReport, OperatorRow
from gate.report.layout import Cell, Limits, Row, Section, table_of
from gate.report.wording import sentences

HEADINGS = ("Operator", "Calls a step", "Where", "Determinism, and what to do")
NOTHING_FOUND = (
    "none found: torch raised no alert, and nothing listed in the project's table was used"
)


def operators_sections(
    operator_audit: OperatorReport | None, limits: Limits
) -> tuple[Section, ...]:
    """Operators with their counts, places and remedies; none where there is nothing to show."""
    if operator_audit is None or not (operator_audit.rows or operator_audit.complete):
        return ()
    here = tuple(row for row in operator_audit.rows if not row.reach.on_cuda)
    sections = [_here(operator_audit, here, limits)] if here or operator_audit.complete else []
    on_cuda = tuple(row for row in operator_audit.rows if row.reach.on_cuda)
    if on_cuda:
        sections.append(
            Section(
                title="On CUDA these would be nondeterministic under torch's defaults "
                f"({len(on_cuda):,})",
                table=table_of(HEADINGS, map(_operator_row, on_cuda), limits.rows, 1),
            )
        )
    return tuple(sections)


def _here(operator_audit: OperatorReport, rows: tuple[OperatorRow, ...], limits: Limits) -> Section:
    if rows:
        table = table_of(HEADINGS, map(_operator_row, rows), limits.rows, 1)
    else:
        table = table_of(("Operators",), [(Cell(NOTHING_FOUND),)], limits.rows)
    extent = (
        "counted in a separate run" if operator_audit.complete else "not counted: no operator audit"
    )
    dropped = (
        f"; {operator_audit.dropped:,} more calls not recorded" if operator_audit.dropped else ""
    )
    return Section(title=f"Operators ({len(rows):,}; {extent}{dropped})", table=table)


def _operator_row(row: OperatorRow) -> Row:
    words = sentences(row.flag.removeprefix("on CUDA: "), row.remedy)
    return (
        Cell(row.operator, code=True),
        Cell(row.calls_per_step),
        Cell(f"{row.where}, steps {row.steps}" if row.where else "", code=True),
        Cell(f"{words} (Source: {row.source})" if row.source else words),
    )
