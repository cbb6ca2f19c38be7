"""What the doctor found, for a terminal: one row for each thing, and its fix below it."""

from __future__ import annotations

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gate.records.doctor import CheckResult, DoctorReport
from gate.report.escape import clean

STYLES = {CheckResult.OK: "green", CheckResult.WARN: "yellow", CheckResult.FAIL: "bold red"}
LONGEST = 600


def doctor_view(report: DoctorReport) -> RenderableType:
    """One row for each thing; text from outside is never taken as markup."""
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("", "What", "Finding, and what to do"):
        table.add_column(heading, overflow="fold")
    for row in report.examined:
        cell = Text(clean(row.found, LONGEST))
        if row.fix:
            cell.append(f"\n→ {clean(row.fix, LONGEST)}", style="bold")
        table.add_row(Text(row.health.value, style=STYLES[row.health]), Text(row.name), cell)
    return table
