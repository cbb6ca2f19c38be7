"""The entries of a baseline for a terminal."""

from __future__ import annotations

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gate.records.baseline import Baseline, BaselineEntry
from gate.report.escape import clean, clean_name

COLUMNS = ("Environment", "Commit", "Recorded", "Last values", "Reason")
MAX_METRICS = 4


def baseline_view(baseline: Baseline) -> RenderableType:
    """One row for each entry; text of the file is never taken as markup."""
    table = Table(box=box.SIMPLE_HEAD, title_justify="left")
    for heading in COLUMNS:
        table.add_column(heading, overflow="fold")
    for entry in baseline.entries:
        table.add_row(*(Text(text) for text in _row(entry)))
    return table


def _row(entry: BaselineEntry) -> tuple[str, ...]:
    parts = entry.environment.parts
    where = ", ".join(parts.get(name, "none") for name in ("device", "cpu", "torch"))
    last = [
        f"{clean_name(series.name)} {series.points[-1].decimal}"
        for series in entry.metrics[:MAX_METRICS]
        if series.points
    ]
    return (
        clean(where),
        clean(entry.commit[:12]),
        clean(entry.recorded_at[:10]),
        "\n".join(last),
        clean(entry.reason),
    )
