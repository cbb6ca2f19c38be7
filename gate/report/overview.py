"""The small table that answers the four questions in ten seconds."""

from __future__ import annotations

from gate.records.comparison import Comparison
from gate.records.evidence import MetricSource
from gate.records.verdict import BaselineFacts, Outcome, SeriesSummary, Verdict
from gate.report.context import cost_words
from gate.report.differences import worst_first
from gate.report.layout import Cell, Row, Table, table_of
from gate.report.sparkline import sparkline
from gate.report.wording import BAD, GOOD, NEUTRAL, WATCH, count, share, short

MAX_PARTS_NAMED = 4
HEADLINE_PARTS = ("device", "torch", "cuda", "python")


def overview(verdict: Verdict) -> Table:
    """One row a question; a question that was not asked says so."""
    rows: list[Row] = [
        (Cell("Repeatable"), Cell(_repeat(verdict.repeat))),
        (Cell(_baseline_question(verdict)), Cell(_baseline(verdict))),
    ]
    if verdict.base_run is not None:
        rows.append((Cell("Same as base commit, run here"), Cell(_judged(verdict.base_run))))
    if verdict.baseline is not None or verdict.environment is not None:
        rows.append((Cell("Environment"), Cell(_environment(verdict))))
    if verdict.cost is not None:
        rows.append((Cell("Determinism costs"), Cell(cost_words(verdict.cost))))
    if verdict.baseline_facts is not None:
        rows.append((Cell("Baseline"), Cell(_age(verdict.baseline_facts))))
    drawn = main_series(verdict)
    if drawn is not None:
        rows.append((Cell(drawn.name, code=True), Cell(_curve(drawn))))
    return table_of(("Question", "Answer"), rows, len(rows))


def main_series(verdict: Verdict) -> SeriesSummary | None:
    """The loss that the guest saw, else any loss, else the first metric that there is."""
    losses = [series for series in verdict.series if series.name.endswith("loss")]
    seen = [series for series in losses if series.source == MetricSource.GUEST.value]
    return next(iter((*seen, *losses, *verdict.series)), None)


def _repeat(repeat: Comparison | None) -> str:
    if repeat is None:
        return f"{NEUTRAL} not compared"
    if repeat.numerically_equal:
        return f"{GOOD} yes, bit for bit: {_compared(repeat)}"
    return f"{BAD} no: {_differing(repeat)}"


def _baseline_question(verdict: Verdict) -> str:
    new = "new " if verdict.outcome is Outcome.BASELINE_CHANGE else ""
    return f"Same as {new}baseline"


def _baseline(verdict: Verdict) -> str:
    if verdict.baseline is not None:
        # once the base commit was run here too, that decides and not the baseline
        return _judged(verdict.baseline, outside=BAD if verdict.base_run is None else WATCH)
    missing = verdict.outcome is Outcome.NO_BASELINE
    return f"{NEUTRAL} {'none for this environment' if missing else 'not compared'}"


def _judged(comparison: Comparison, *, outside: str = BAD) -> str:
    if comparison.numerically_equal:
        return f"{GOOD} yes, bit for bit: {_compared(comparison)}"
    if comparison.within_tolerance:
        return f"{GOOD} within tolerance: {_differing(comparison)}"
    return f"{outside} no: {_differing(comparison)}"


def _compared(comparison: Comparison) -> str:
    return ", ".join(
        (
            count(comparison.compared_points, "number"),
            count(comparison.compared_steps, "step"),
            count(comparison.compared_tensors, "tensor"),
        )
    )


def _differing(comparison: Comparison) -> str:
    if not comparison.something_compared:
        return "nothing could be compared"
    points, tensors = comparison.compared_points, comparison.compared_tensors
    words = f"{len(comparison.metrics):,} of {count(points, 'number')}{_worst(comparison)}"
    words += f", {len(comparison.tensors):,} of {count(tensors, 'tensor')} differ"
    faults = len(comparison.series) + len(comparison.step_faults)
    if faults:
        words += f", {count(faults, 'series or step')} not matching"
    return words if comparison.first_step is None else f"{words}, from step {comparison.first_step}"


def _worst(comparison: Comparison) -> str:
    worst = next(iter(worst_first(comparison.metrics)), None)
    if worst is None or worst.relative is None:
        return ""
    return f" (worst by {share(worst.relative)})"


def _environment(verdict: Verdict) -> str:
    parts = verdict.environment.parts if verdict.environment else {}
    here = ", ".join(
        value if name == "device" else f"{name} {value}"
        for name in HEADLINE_PARTS
        if (value := parts.get(name, "none")) != "none"
    )
    return f"{_moved(verdict.baseline)}{': ' if here else ''}{here}"


def _moved(baseline: Comparison | None) -> str:
    if baseline is None:
        return f"{NEUTRAL} not compared"
    if baseline.same_environment:
        return f"{GOOD} as recorded"
    names = [change.part for change in baseline.environment]
    rest = len(names) - MAX_PARTS_NAMED
    named = ", ".join(names[:MAX_PARTS_NAMED]) + (f" and {rest} more" if rest > 0 else "")
    return f"{WATCH} {named} moved"


def _age(facts: BaselineFacts) -> str:
    words = f"from commit {short(facts.commit)}, {count(facts.age_days, 'day')} old"
    return f"{WATCH} {words}: stale, record it again" if facts.stale else words


def _curve(series: SeriesSummary) -> str:
    return f"{sparkline(series.values)} {series.last_decimal}"
