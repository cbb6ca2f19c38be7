"""Render the report as one self-contained HTML page: no script, no address, no other file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gate.comparison.measurements import Closeness, ComparedCommits
from gate.comparison.state_difference import short_names, with_parameter
from gate.evidence.run_evidence import MetricSeries, RunEvidence
from gate.report.assembly import ReportLinks, report_of
from gate.report.context import REMEDY
from gate.report.escape import command_lines, safe_url
from gate.report.judged import TITLE
from gate.report.layout import Limits, Report, Section, cells_renamed
from gate.report.measurement_sections import (
    compared_facts,
    compared_headline,
    compared_sections,
    compared_sentences,
)
from gate.report.overview import NOT_RUN
from gate.report.page import curves, maps, run_charts
from gate.report.page.curves import Mark
from gate.report.page.maps import difference_map
from gate.report.page.page_sources import PageSources
from gate.report.page.page_tables import page_sections
from gate.report.page.run_charts import (
    MetricPicture,
    TimedSteps,
    TimesPicture,
    first_differences,
    memory_charts,
    metric_picture,
    series_picture,
    times_picture,
)
from gate.report.page.templates import template
from gate.report.wording import not_run_words, why_not_run
from gate.training.runs import Commit, RunMode
from gate.verdict.verdict import Verdict

PAGE_BYTES = 2_000_000
MAX_CURVES = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class PageLimits:
    """How many rows and curves a page shows before it counts the rest."""

    rows: Limits
    curves: int


# Tried in this order, until a page is small enough.
PAGE_LIMITS = (
    PageLimits(rows=Limits(deltas=2_000, rows=500), curves=MAX_CURVES),
    PageLimits(rows=Limits(deltas=500, rows=300), curves=MAX_CURVES),
    PageLimits(rows=Limits(deltas=100, rows=100), curves=8),
    PageLimits(rows=Limits(deltas=20, rows=20), curves=4),
    PageLimits(rows=Limits(deltas=5, rows=5), curves=1),
)


def page_html(
    verdict: Verdict,
    links: ReportLinks,
    *,
    gate_id: str = "default",
    sources: PageSources | None = None,
) -> str:
    """Return the page, at most `PAGE_BYTES` of UTF-8 if possible; what does not fit is counted.

    The template strips invisible characters from every value and escapes it. Without `sources`, the
    page only has the verdict's own curves and tables.
    """
    shown_sources = sources or PageSources()
    drawn = _pictures(verdict, shown_sources)
    rename = partial(with_parameter, names=short_names(shown_sources.parameter_names))
    page = ""
    for limits in PAGE_LIMITS:
        report = _without_moved_rows(
            _with_parameters(report_of(verdict, links, limits.rows), rename)
        )
        page = template("page.html").render(
            drawn
            | {
                "report": report,
                "gate_id": gate_id,
                "left_out": not_run_words(verdict.not_run),
                "why_left_out": why_not_run(verdict.not_run),
                # One of our own words: it becomes a class name, where the training's text must not
                # be.
                "tone": _tone(verdict),
                "explaining": _explaining(report),
                "run_url": safe_url(report.run_url),
                "steps": [(step.text, command_lines(step.command)) for step in report.next_steps],
                "verify": command_lines(report.verify_command),
                # Pictures make up most of a page's bytes, so they are cut together with the rows.
                "metrics": drawn["metrics"][: limits.curves],
                "metrics_omitted": max(0, len(verdict.series) - limits.curves),
                "tables": [
                    cells_renamed(section, rename)
                    for section in page_sections(verdict, shown_sources, limits.rows)
                ],
            }
        )
        if len(page.encode("utf-8")) <= PAGE_BYTES:
            break
    return page


def _tone(verdict: Verdict) -> str:
    if verdict.nothing_to_compare:
        return "told"
    return "pass" if verdict.passes else "fail"


def _with_parameters(report: Report, rename: Callable[[str], str]) -> Report:
    """Return the report with an optimizer's state named by its parameters, not by numbers."""
    return replace(
        report, sections=tuple(cells_renamed(section, rename) for section in report.sections)
    )


def _without_moved_rows(report: Report) -> Report:
    """Return the report without overview rows that the page shows elsewhere."""
    moved = (TITLE, NOT_RUN)
    rows = tuple(row for row in report.overview.rows if row[0].text not in moved)
    return replace(report, overview=replace(report.overview, rows=rows, total=len(rows)))


def _explaining(report: Report) -> list[Section]:
    """Return the sections that come first, without a remedy that is already a next step."""
    said = " ".join(step.text for step in report.next_steps).casefold()
    return [_without_said(section, said) for section in report.sections if section.anchor]


def _without_said(section: Section, said: str) -> Section:
    rows = tuple(
        row
        for row in section.table.rows
        if row[0].text != REMEDY or row[-1].text.casefold().rstrip(".") not in said
    )
    cut = len(section.table.rows) - len(rows)
    table = replace(section.table, rows=rows, total=section.table.total - cut)
    return replace(section, table=table)


def _pictures(verdict: Verdict, sources: PageSources) -> dict[str, Any]:
    """Return the pictures, laid out only once for all tries, and the sizes of their frames."""
    marks, main = first_differences(verdict), verdict.main_series
    # The first metric is seen at once, so it is the one that the answers mention.
    order = sorted(verdict.series, key=lambda series: series is not main)
    return {
        "metrics": [metric_picture(series, sources, marks) for series in order[:MAX_CURVES]],
        "differences": difference_map(verdict, sources),
        "fingerprints": maps.fingerprint_map(verdict, sources),
        "times": run_charts.step_times(sources),
        "memory": memory_charts(sources),
        "frame": curves,
        "fingerprint_frame": maps,
        "times_frame": run_charts,
    }


# Numbers of table rows and of drawn metrics, tried in this order until the page is small enough.
LIMITS = ((500, 12), (200, 8), (50, 4), (10, 1))


def compare_page(compared: ComparedCommits, runs: tuple[RunEvidence, ...]) -> str:
    """Return the page of a comparison, at most `PAGE_BYTES` of UTF-8 if possible."""
    pictures, times = _compared_pictures(compared, runs), _times(runs)
    page = ""
    for rows, drawn in LIMITS:
        page = template("compare.html").render(
            headline=compared_headline(compared),
            # A comparison judges nothing: green is for equal bits, and no other answer is a
            # failure.
            tone="pass" if compared.closeness is Closeness.EQUAL else "told",
            sentences=compared_sentences(compared),
            facts=compared_facts(compared),
            sections=compared_sections(compared, rows, wide=True),
            metrics=pictures[:drawn],
            metrics_omitted=max(0, len(compared.metrics) - drawn),
            times=times,
            frame=curves,
            times_frame=run_charts,
        )
        if len(page.encode("utf-8")) <= PAGE_BYTES:
            break
    return page


def _compared_pictures(
    compared: ComparedCommits, runs: tuple[RunEvidence, ...]
) -> list[MetricPicture]:
    """Return curves of base and head for each metric, from their first strict runs; loss first."""
    sides = [
        {series.name: series for series in run.metrics}
        for run in (_strict(runs, Commit.BASE), _strict(runs, Commit.HEAD))
    ]
    pictures = []
    for metric in sorted(compared.metrics, key=lambda metric: metric.name != "loss"):
        known: tuple[tuple[str, MetricSeries], ...] = tuple(
            (commit.value, series[metric.name])
            for commit, series in zip((Commit.BASE, Commit.HEAD), sides, strict=True)
            if metric.name in series
        )
        step = metric.first_step
        marks = () if step is None else (Mark(step=step, label=f"step {step}: head ≠ base"),)
        pictures.append(series_picture(known, metric.head_last or metric.base_last, marks))
        if len(pictures) == LIMITS[0][1]:
            break
    return pictures


def _strict(runs: tuple[RunEvidence, ...], commit: Commit) -> RunEvidence:
    return next(run for run in runs if (run.run.commit, run.run.mode) == (commit, RunMode.STRICT))


def _times(runs: tuple[RunEvidence, ...]) -> TimesPicture | None:
    """Return a row for each kind of run, with the steps of all its runs together."""
    return times_picture(
        TimedSteps(
            label=f"{commit.value} {mode.value}",
            mode=mode,
            seconds=tuple(
                sorted(
                    seconds
                    for run in runs
                    if (run.run.commit, run.run.mode) == (commit, mode)
                    for seconds in run.timings.seconds
                )
            ),
        )
        for mode in (RunMode.STRICT, RunMode.DEFAULT)
        for commit in (Commit.BASE, Commit.HEAD)
    )
