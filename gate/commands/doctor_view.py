"""What the doctor found, for a terminal: an entry for each thing, and its fix below it."""

from __future__ import annotations

from rich.console import Group, RenderableType

from gate.pipelines.doctor.health import CheckResult, DoctorReport, Examined
from gate.report.escape import clean
from gate.report.sentence import Sentence

STYLES = {CheckResult.OK: "green", CheckResult.WARN: "yellow", CheckResult.FAIL: "bold red"}
LONGEST = 600
HEALTH_WIDTH = max(len(health.value) for health in CheckResult)


def doctor_view(report: DoctorReport) -> RenderableType:
    """One entry for each thing; a fix is never broken within a command.

    Text from outside is never taken as markup.
    """
    name_width = max((len(row.name) for row in report.examined), default=0)
    return Group(*(line for row in report.examined for line in _entry(row, name_width)))


def _entry(row: Examined, name_width: int) -> list[Sentence]:
    lead = f"  {row.health.value:<{HEALTH_WIDTH}}  {row.name:<{name_width}}  "
    found = Sentence(
        clean(row.found, LONGEST), lead=lead, lead_style=STYLES[row.health], indent=len(lead)
    )
    if not row.fix:
        return [found]
    arrow = f"{'':{len(lead)}}→ "
    fix = Sentence(
        clean(row.fix, LONGEST), lead=arrow, lead_style="bold", indent=len(lead), style="bold"
    )
    return [found, fix]
