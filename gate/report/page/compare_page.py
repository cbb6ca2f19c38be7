"""Two compared commits as one HTML page that needs nothing else."""

from __future__ import annotations

from gate.comparison.measured_base_head import Closeness, ComparedCommits
from gate.evidence.run_evidence import MetricSeries, RunEvidence
from gate.report.measurements import (
    compared_facts,
    compared_headline,
    compared_sections,
    compared_sentences,
)
from gate.report.page import curves, step_times
from gate.report.page.curves import Mark
from gate.report.page.run_charts import MetricPicture, series_picture
from gate.report.page.step_times import TimedSteps, TimesPicture, times_picture
from gate.report.page.templates import template
from gate.training.runs import Commit, RunMode

PAGE_BYTES = 2_000_000
# rows of a table and number of metrics drawn, tried in this order until the page is small enough
LIMITS = ((500, 12), (200, 8), (50, 4), (10, 1))


def compare_page(compared: ComparedCommits, runs: tuple[RunEvidence, ...]) -> str:
    """The page, below 2 MB of UTF-8: what does not fit is counted."""
    pictures, times = _compared_pictures(compared, runs), _times(runs)
    page = ""
    for rows, drawn in LIMITS:
        page = template("compare.html").render(
            headline=compared_headline(compared),
            # told, not judged: green is for equal bits and no other answer is a failure
            tone="pass" if compared.closeness is Closeness.EQUAL else "told",
            sentences=compared_sentences(compared),
            facts=compared_facts(compared),
            sections=compared_sections(compared, rows, wide=True),
            metrics=pictures[:drawn],
            metrics_omitted=max(0, len(compared.metrics) - drawn),
            times=times,
            frame=curves,
            times_frame=step_times,
        )
        if len(page.encode("utf-8")) <= PAGE_BYTES:
            break
    return page


def _compared_pictures(
    compared: ComparedCommits, runs: tuple[RunEvidence, ...]
) -> list[MetricPicture]:
    """Base and head of each metric, of the first strict run of each; the loss before all others."""
    sides = [
        {series.name: series for series in run.metrics}
        for run in (_strict(runs, Commit.BASE), _strict(runs, Commit.HEAD))
    ]
    found = []
    for metric in sorted(compared.metrics, key=lambda metric: metric.name != "loss"):
        known: tuple[tuple[str, MetricSeries], ...] = tuple(
            (commit.value, series[metric.name])
            for commit, series in zip((Commit.BASE, Commit.HEAD), sides, strict=True)
            if metric.name in series
        )
        step = metric.first_step
        marks = () if step is None else (Mark(step=step, label=f"step {step}: head ≠ base"),)
        found.append(series_picture(known, metric.head_last or metric.base_last, marks))
        if len(found) == LIMITS[0][1]:
            break
    return found


def _strict(runs: tuple[RunEvidence, ...], commit: Commit) -> RunEvidence:
    return next(run for run in runs if (run.run.commit, run.run.mode) == (commit, RunMode.STRICT))


def _times(runs: tuple[RunEvidence, ...]) -> TimesPicture | None:
    """A row for each kind: the steps of all its runs together."""
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
