"""Earlier runs of this gate on the default branch: a row of the small table, and all of them."""

from __future__ import annotations

from datetime import datetime

from gate.comparison.differences import CostState
from gate.report.layout import Cell, Limits, Row, Section, table_of
from gate.report.sparkline import sparkline
from gate.report.wording import BAD, GOOD, SHORT_COMMIT, STOPPED, count, percent
from gate.verdict.published_history import HistoryLine
from gate.verdict.verdict import Outcome, Verdict

SHOWN_RUNS = 20
# a line of the history is short; a longer name or number is not worth one
NAME_CHARACTERS = 60
NUMBER_CHARACTERS = 40
HIGHEST_RATIO = 1e6
# what such a run ended with is no result of the commit
WITHOUT_RESULT = frozenset({Outcome.NONDETERMINISTIC, Outcome.ERROR})


def history_line(verdict: Verdict) -> HistoryLine:
    """What the history keeps of a verdict."""
    series, cost = verdict.main_series, verdict.cost
    ratio = cost.time_ratio if cost is not None and cost.state is CostState.MEASURED else None
    last = series.last_decimal if series is not None else ""
    return HistoryLine(
        judged_at=verdict.created_at,
        commit=verdict.commit,
        outcome=verdict.outcome,
        passes=verdict.passes,
        metric=series.name[:NAME_CHARACTERS] if series is not None else "",
        last=last if len(last) <= NUMBER_CHARACTERS else "",
        cost_ratio=ratio if ratio is not None and 0 < ratio < HIGHEST_RATIO else None,
    )


def history_row(lines: tuple[HistoryLine, ...], now: str) -> Row | None:
    """The last runs in one row, the newest last; `now` is when this verdict was made."""
    if not lines:
        return None
    shown = lines[-SHOWN_RUNS:]
    flakes = sum(line.outcome is Outcome.NONDETERMINISTIC for line in shown)
    words = [
        "".join(map(_icon, shown)),
        _last_move(lines, now),
        _cost(shown),
        f"{flakes} did not repeat" if flakes else "",
    ]
    title = f"Last {count(len(shown), 'run')} on the default branch"
    return Cell(title), Cell(" · ".join(word for word in words if word))


def history_section(lines: tuple[HistoryLine, ...], limits: Limits) -> Section | None:
    """All runs that are kept, the newest first."""
    if not lines:
        return None
    headings = ("Judged at", "Commit", "Outcome", "Last value", "Cost of determinism")
    table = table_of(headings, map(_row, reversed(lines)), limits.rows, 4)
    return Section(title=f"On the default branch ({table.total:,})", table=table)


def _row(line: HistoryLine) -> Row:
    value = f"{line.metric} {line.last}" if line.last else ""
    return (
        Cell(line.judged_at),
        Cell(line.commit[:SHORT_COMMIT], code=True),
        Cell(f"{_icon(line)} {line.outcome.value}"),
        Cell(value),
        Cell("" if line.cost_ratio is None else percent(line.cost_ratio)),
    )


def _icon(line: HistoryLine) -> str:
    if line.outcome is Outcome.ERROR:
        return STOPPED
    return GOOD if line.passes else BAD


def _last_move(lines: tuple[HistoryLine, ...], now: str) -> str:
    """When the main metric last ended in another value than the time before."""
    results = [line for line in lines if line.last and line.outcome not in WITHOUT_RESULT]
    # another metric is no move of this one
    same = [line for line in results if line.metric == results[-1].metric]
    if not same:
        return ""
    name = same[-1].metric
    for before, after in zip(same[-2::-1], same[:0:-1], strict=True):
        if before.last != after.last:
            days = (datetime.fromisoformat(now) - datetime.fromisoformat(after.judged_at)).days
            when = f"{count(days, 'day')} ago" if days > 0 else "today"
            return f"{name} last moved {when}, in commit {after.commit[:SHORT_COMMIT]}"
    return f"{name} did not move in {count(len(same), 'run')}"


def _cost(lines: tuple[HistoryLine, ...]) -> str:
    ratios = [line.cost_ratio for line in lines if line.cost_ratio is not None]
    if not ratios:
        return ""
    drawn = f"{sparkline(ratios)} " if len(ratios) > 1 else ""
    return f"cost {drawn}{percent(ratios[-1])}"
