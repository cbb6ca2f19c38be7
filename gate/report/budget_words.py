"""The determinism budget: a line for the small table, and a section with a row for each source."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gate.report.layout import Cell, Limits, Row, Section, table_of
from gate.report.wording import count, share
from gate.verdict.measured_determinism_budget import (
    ClusterSource,
    DeterminismBudget,
    SourceState,
    SourceStatus,
)
from gate.verdict.verdict import Verdict

TITLE = "Determinism budget"
NAMES: Mapping[ClusterSource, str] = MappingProxyType(
    {
        ClusterSource.REDUCTION: "order of reductions between ranks",
        ClusterSource.NEIGHBOURS: "neighbours on the machine",
        ClusterSource.WORKERS: "elastic workers",
        ClusterSource.HARDWARE: "unlike hardware",
        ClusterSource.PLACEMENT: "stragglers and placement",
    }
)
SHORT: Mapping[ClusterSource, str] = MappingProxyType(
    {
        ClusterSource.REDUCTION: "reductions",
        ClusterSource.NEIGHBOURS: "neighbours",
        ClusterSource.WORKERS: "elastic workers",
        ClusterSource.HARDWARE: "unlike hardware",
        ClusterSource.PLACEMENT: "placement",
    }
)
# what matters to a reader first: what may still move a number
ORDER = (
    SourceStatus.BOUNDED,
    SourceStatus.RECORDED,
    SourceStatus.ELIMINATED,
    SourceStatus.NOT_EXERCISED,
)


def state_words(state: SourceStatus) -> str:
    """A state for a reader."""
    return state.value.replace("-", " ")


def budget_rows(budget: DeterminismBudget) -> tuple[Row, ...]:
    """All sources in one line, those that may still move a number first; none of a fault."""
    if not budget:
        return ()
    groups = ((state, [source for source in budget if source.state is state]) for state in ORDER)
    words = "; ".join(_group(state, sources) for state, sources in groups if sources)
    return ((Cell(TITLE), Cell(words)),)


def _group(state: SourceStatus, sources: list[SourceState]) -> str:
    names = ", ".join(SHORT[source.kind] for source in sources)
    if state is SourceStatus.BOUNDED:
        return f"{names} bounded (moved a metric {figure_words(sources[0])})"
    return f"{names} {state_words(state)}"


def figure_words(source: SourceState) -> str:
    """The figure of a bounded source, and where it comes from."""
    if source.figure is None:
        return ""
    runs = count(source.runs, "run")
    return f"at most {share(source.figure)} in {runs}" if source.figure else f"not at all in {runs}"


def budget_section(verdict: Verdict, limits: Limits) -> Section | None:
    """A row for each source; the comment has the line of `budget_rows` alone."""
    if not verdict.determinism_budget:
        return None
    rows = (
        (
            Cell(NAMES[source.kind]),
            Cell(state_words(source.state)),
            Cell(figure_words(source)),
            Cell(source.because),
        )
        for source in verdict.determinism_budget
    )
    headings = ("Source of nonreproducibility", "State", "A metric moves", "Why")
    return Section(title=TITLE, table=table_of(headings, rows, limits.rows), in_comment=False)
