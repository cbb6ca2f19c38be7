"""Show service levels to readers: as sections of tables, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from gate.fleet.indicators import Burn, GroupLevels, IndicatorLevel, LastVerdict, SloReport
from gate.report.layout import Cell, Row, Section, table_of
from gate.report.markdown import table_markdown
from gate.report.terminal_lines import section_view
from gate.settings.slo import Indicator
from gate.text.phrases import count
from gate.text.untrusted_text import safe_line
from gate.verdict.verdict import FailureMode, judged_words

TITLES: Final = {
    Indicator.REPRODUCIBLE: "M1 reproducible",
    Indicator.DIGESTS: "M2 equal digests",
    Indicator.SPREAD: "M3 metric spread",
    Indicator.FLAKES: "M4 same outcome",
    Indicator.DATA: "M5 data verified",
    Indicator.OPERATORS: "M6 operators",
    Indicator.RUN_TIME: "M7 step time",
    Indicator.ROLLBACKS: "M8 rollbacks",
    Indicator.SEALED: "M9 sealed passes",
    Indicator.TIME_TO_VERDICT: "M10 time taken",
}
HEADINGS: Final = ("Indicator", "Good", "Share", "Target", "Budget", "Burn 1h, 6h, 3d")
GATE_HEADINGS: Final = ("Gate", "Last verdict", "Outcome", "Commit", "No verdict since")
MAX_ROWS: Final = 1000
MAX_GROUPS: Final = 50
SHORT_COMMIT: Final = 12
NONE: Final = "—"
HOURS_A_DAY: Final = 24


def slo_headline(report: SloReport) -> str:
    """Say in one line what is counted, and whether every target is met."""
    missed = sum(level.met is False for group in report.groups for level in group.levels)
    silent = sum(gate.silent for gate in report.gates)
    words = [
        count(report.lines, "line"),
        f"{report.window_days:g} d to {_minute(report.created_at)} UTC",
    ]
    words.append(f"{count(missed, 'target')} missed" if missed else "no target missed")
    if silent:
        words.append(f"{count(silent, 'gate')} silent")
    return " · ".join(words)


def slo_notes(report: SloReport) -> tuple[str, ...]:
    """Return sentences about lines that do not count, and about the largest spread."""
    left = [f"{count(lines, 'line')} left out: {why}." for why, lines in report.left_out.items()]
    if report.without_run_id:
        left.append(f"{count(report.without_run_id, 'line')} without a run id counted.")
    if report.largest_spread:
        left.append(f"Largest spread of a metric between strict runs: {report.largest_spread:.3g}.")
    return tuple(left)


def slo_sections(report: SloReport) -> tuple[Section, ...]:
    """Return a table for each group, the outcomes, and the gates with their last verdicts."""
    groups = [
        Section(
            title=group_title(report, group),
            table=table_of(HEADINGS, map(_level_row, group.levels), MAX_ROWS, 1, 2, 3, 4),
            leading=True,
        )
        for group in report.groups[:MAX_GROUPS]
    ]
    modes = Section(
        title="Verdicts by outcome",
        table=table_of(
            ("Lines of", "Outcome", "Failure mode", "Verdicts"), _outcome_rows(report), MAX_ROWS, 3
        ),
    )
    rows = [_gate_row(gate, report.created_at) for gate in report.gates]
    last = Section(title="Last verdicts", table=table_of(GATE_HEADINGS, rows, MAX_ROWS))
    return (*groups, modes, last)


def group_title(report: SloReport, group: GroupLevels) -> str:
    """Return a group's title, for example `owner/name · gate default`."""
    values = zip(report.by, group.values, strict=True)
    words = [f"{by.value} {safe_line(value) or 'unknown'}" for by, value in values]
    return " · ".join([*([safe_line(group.repository)] if group.repository else []), *words])


def slo_view(report: SloReport) -> RenderableType:
    """Return the service levels for a terminal."""
    hidden = len(report.groups) - MAX_GROUPS
    return Group(
        Text(slo_headline(report), style="bold"),
        *(Text(note) for note in slo_notes(report)),
        *([Text(f"{count(hidden, 'group')} more: see --json.")] if hidden > 0 else []),
        *(section_view(section) for section in slo_sections(report)),
    )


def slo_markdown(report: SloReport) -> str:
    """Return the service levels for a job's summary or an issue."""
    parts = [f"# {slo_headline(report)}", *slo_notes(report)]
    for section in slo_sections(report):
        parts += [f"## {_heading(section.title)}", table_markdown(section.table).strip()]
    return "\n\n".join(parts) + "\n"


def _heading(title: str) -> str:
    """Return a title in which no name can become a link or a tag."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>#|@" else letter for letter in title)


def _level_row(level: IndicatorLevel) -> Row:
    mark = {True: "✅", False: "❌", None: NONE}[level.met]
    burn = ", ".join(_rate(rate) for rate in level.burn) if level.valid else NONE
    texts = (
        f"{mark} {TITLES[level.indicator]}",
        f"{level.good:,}/{level.valid:,}" if level.valid else NONE,
        share(level.ratio),
        share(level.target),
        share(level.budget_left),
        burn,
    )
    return tuple(map(Cell, texts))


def _rate(burn: Burn) -> str:
    return NONE if burn.rate is None else f"{burn.rate:.3g}"


def share(ratio: float | None) -> str:
    """Return a percentage that is not rounded up to 100: 1,999 of 2,000 is 99.95 %."""
    if ratio is None:
        return NONE
    return f"{ratio * 100:.4g} %" if ratio < 1 else f"{ratio * 100:.0f} %"


def _outcome_rows(report: SloReport) -> Iterator[Row]:
    for group in report.groups:
        for row in group.outcomes:
            outcome = "cancelled" if row.cancelled else row.outcome.value
            mode = "" if row.failure_mode is FailureMode.NONE else row.failure_mode.value
            yield tuple(map(Cell, (group_title(report, group), outcome, mode, f"{row.verdicts:,}")))


def _minute(time: str) -> str:
    return f"{datetime.fromisoformat(time).astimezone(UTC):%Y-%m-%d %H:%M}"


def _gate_row(gate: LastVerdict, now: str) -> Row:
    line = gate.line
    name = f"{gate.repository} {gate.gate_id}".strip()
    if line is None:
        return tuple(map(Cell, (name, NONE, "", "", "no verdict in the window")))
    waited = datetime.fromisoformat(now) - datetime.fromisoformat(line.judged_at)
    hours = waited.total_seconds() / 3600
    silence = f"{hours / HOURS_A_DAY:.1f} d" if hours >= HOURS_A_DAY else f"{hours:.1f} h"
    limit = f"❌ {silence}, limit {gate.limit_hours:g} h" if gate.silent else silence
    return (
        Cell(name),
        Cell(_minute(line.judged_at)),
        Cell(judged_words(line.outcome, passes=line.passes)),
        Cell(line.commit[:SHORT_COMMIT], code=True),
        Cell(limit),
    )
