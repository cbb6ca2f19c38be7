"""The sections that list what differs between two results, worst first."""

from __future__ import annotations

from gate.comparison.differences import Comparison, MetricDelta
from gate.report.difference_words import ulp_words
from gate.report.layout import Cell, Limits, Row, Section, Table, table_of
from gate.report.wording import magnitude, share, short_if_digest, worst_first


def comparison_sections(
    name: str, comparison: Comparison | None, limits: Limits, *, judged: bool
) -> tuple[Section, ...]:
    """Numbers, series, steps and tensors that differ; nothing for what is equal.

    `judged` adds whether each number is inside its tolerance: a repeat has none.
    """
    if comparison is None:
        return ()
    sections = (
        _numbers(name, comparison, limits, judged=judged),
        _faults(name, comparison, limits),
        _tensors(name, comparison, limits),
    )
    return tuple(section for section in sections if section is not None)


def _numbers(name: str, comparison: Comparison, limits: Limits, *, judged: bool) -> Section | None:
    if not comparison.metrics:
        return None
    headings = ("Metric", "Step", comparison.expected, comparison.observed, "Relative", "ULP")
    table = table_of(
        (*headings, "Within tolerance") if judged else headings,
        (_number_row(delta, judged=judged) for delta in worst_first(comparison.metrics)),
        limits.deltas,
        1,
        2,
        3,
        4,
        5,
    )
    return Section(
        title=f"{name}: numbers that differ ({table.total:,})", table=table, leading=True
    )


def _number_row(delta: MetricDelta, *, judged: bool) -> Row:
    row = (
        Cell(delta.metric, code=True),
        Cell(str(delta.step)),
        Cell(delta.expected),
        Cell(delta.observed),
        Cell(share(delta.relative) if delta.relative is not None else magnitude(delta.absolute)),
        Cell(ulp_words(delta.ulp)),
    )
    return (*row, Cell("yes" if delta.within else "no")) if judged else row


def _faults(name: str, comparison: Comparison, limits: Limits) -> Section | None:
    rows: list[Row] = [
        (Cell(fault.metric, code=True), Cell(fault.reason)) for fault in comparison.series
    ]
    rows += [(Cell("steps"), Cell(fault.message)) for fault in comparison.step_faults]
    if not rows:
        return None
    table = table_of(("What", "Why"), rows, limits.deltas)
    return Section(
        title=f"{name}: steps and series that do not match ({table.total:,})",
        table=table,
        leading=True,
    )


def _tensors(name: str, comparison: Comparison, limits: Limits) -> Section | None:
    if not comparison.tensors:
        return None
    rows = (
        (
            Cell(delta.name, code=True),
            Cell(delta.kind.value),
            Cell(short_if_digest(delta.expected), code=True),
            Cell(short_if_digest(delta.observed), code=True),
        )
        for delta in comparison.tensors
    )
    headings = ("Tensor", "How", comparison.expected, comparison.observed)
    table = table_of(headings, rows, limits.deltas)
    title = f"{name}: tensors that differ ({table.total:,})"
    return Section(title=title, table=table, leading=True)


def environment_changes(comparison: Comparison | None, limits: Limits) -> Section | None:
    """The parts of the environment that moved since the baseline was recorded."""
    if comparison is None or comparison.same_environment:
        return None
    rows = (
        (
            Cell(change.part, code=True),
            Cell(short_if_digest(change.expected), code=True),
            Cell(short_if_digest(change.observed), code=True),
            Cell("yes" if change.comparable else "no"),
            Cell("; ".join(filter(None, (*change.details, change.share)))),
        )
        for change in comparison.environment
    )
    table: Table = table_of(
        ("Part", "Baseline", "Here", "May differ", "Details"), rows, limits.rows
    )
    return Section(
        title=f"Environment: parts that moved ({table.total:,})", table=table, leading=True
    )
