"""Render a study as a page: a dot for each seed, curves over steps, efficiency over ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gate.comparison.studies import MetricCurve, StudyArm, StudyDocument, StudyKind
from gate.report.page import curves
from gate.report.page.curves import Chart, Line, Scale, Tick, axis_number, chart, ticks
from gate.report.page.templates import template
from gate.report.study_sections import (
    spread_words,
    study_facts,
    study_headline,
    study_sections,
    study_sentences,
)
from gate.text.phrases import count

PAGE_BYTES = 2_000_000
# Numbers of table rows and of pictures, tried in this order until the page is small enough.
LIMITS = ((500, 12), (100, 4), (20, 1))
ROW_HEIGHT, TOP, BOTTOM = 34, 10, 46
LOOKS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class DotRow:
    """An arm's values of one metric, in picture units; `bar` is the mean's interval."""

    label: str
    style: int
    y: float
    dots: tuple[float, ...]
    mean: float
    bar: tuple[float, float]
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DotPicture:
    """A metric's last values, with a row for each arm that has them at every seed."""

    title: str
    height: int
    rows: tuple[DotRow, ...]
    x_ticks: tuple[Tick, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPoint:
    """The efficiency at a number of ranks with its error bar, in picture units."""

    x: float
    y: float
    low: float
    high: float
    label: str
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPicture:
    """Efficiency over ranks; `ideal` is the y of 100 %."""

    points: tuple[RankPoint, ...]
    path: str
    ideal: float
    y_ticks: tuple[Tick, ...]


def study_page(study: StudyDocument) -> str:
    """Return the page, at most `PAGE_BYTES` of UTF-8 if possible; only the document is needed."""
    dots, lines = tuple(_dot_pictures(study)), tuple(_curve_charts(study))
    page = ""
    for rows, drawn in LIMITS:
        page = template("study.html").render(
            headline=study_headline(study),
            sentences=study_sentences(study),
            facts=study_facts(study),
            sections=study_sections(study, rows, wide=True),
            dots=dots[:drawn],
            dots_omitted=max(0, len(dots) - drawn),
            curves=lines[:drawn],
            curves_omitted=max(0, len(lines) - drawn),
            ranks=_rank_picture(study),
            frame=curves,
        )
        if len(page.encode("utf-8")) <= PAGE_BYTES:
            break
    return page


def _dot_pictures(study: StudyDocument) -> Iterator[DotPicture]:
    names = dict.fromkeys(metric.metric for arm in study.arms for metric in arm.metrics)
    for name in sorted(names, key=lambda name: name != "loss"):
        # An arm looks the same in every picture, even if other arms have no values there.
        shown = [
            (arm, look % LOOKS, values)
            for look, arm in enumerate(study.arms)
            if (values := _values(study, arm, name))
        ]
        if not shown:
            continue
        whole = [number for _, _, values in shown for number in values]
        scale = Scale(
            low=min(whole), high=max(whole), start=curves.LEFT, end=curves.WIDTH - curves.RIGHT
        )
        yield DotPicture(
            title=name,
            height=TOP + ROW_HEIGHT * len(shown) + BOTTOM,
            rows=tuple(
                _dot_row(arm, name, values, scale, style=style, y=TOP + ROW_HEIGHT * (row + 0.5))
                for row, (arm, style, values) in enumerate(shown)
            ),
            x_ticks=ticks(scale, axis_number),
        )


def _values(study: StudyDocument, arm: StudyArm, metric: str) -> tuple[float, ...]:
    """Return the last values over the seeds; none if the arm has no sample of the metric."""
    if not any(arm_metric.metric == metric and arm_metric.sample for arm_metric in arm.metrics):
        return ()
    values = (
        value.point.value
        for run in study.runs_of(arm.name)
        for value in run.values
        if value.metric == metric
    )
    return tuple(number for number in values if math.isfinite(number))


def _dot_row(
    arm: StudyArm, metric: str, values: tuple[float, ...], scale: Scale, *, style: int, y: float
) -> DotRow:
    arm_metric = next(measured for measured in arm.metrics if measured.metric == metric)
    mean, deviation = (
        (arm_metric.sample.mean, arm_metric.sample.deviation) if arm_metric.sample else (0.0, 0.0)
    )
    # An interval may be wider than the dots, but the picture ends where they do.
    low, high = (
        min(max(bound if bound is not None else mean, scale.low), scale.high)
        for bound in (arm_metric.low, arm_metric.high)
    )
    return DotRow(
        label=arm.name,
        style=style,
        y=y,
        dots=tuple(scale.at(value) for value in values),
        mean=scale.at(mean),
        bar=(scale.at(low), scale.at(high)),
        words=f"{arm.name}: {spread_words(mean, deviation)}",
    )


def _curve_charts(study: StudyDocument) -> Iterator[Chart]:
    for curve in study.arms[0].curves:
        lines = tuple(
            _line(arm.name, number, other.steps, other.mean)
            for number, arm in enumerate(study.arms)
            for other in arm.curves
            if other.metric == curve.metric
        )
        yield chart(
            f"{curve.metric}, mean over seeds", lines if len(study.arms) > 1 else _only_arm(curve)
        )


def _only_arm(curve: MetricCurve) -> tuple[Line, ...]:
    columns = (("mean", curve.mean), ("lowest", curve.low), ("highest", curve.high))
    return tuple(
        _line(name, number, curve.steps, column) for number, (name, column) in enumerate(columns)
    )


def _line(name: str, number: int, steps: tuple[int, ...], column: tuple[float | None, ...]) -> Line:
    values = tuple(math.nan if value is None else value for value in column)
    last = f"last {axis_number(values[-1])}" if values else "no step that all runs have"
    return Line(name=name, style=number % LOOKS, steps=steps, values=values, words=last)


def _rank_picture(study: StudyDocument) -> RankPicture | None:
    if study.kind is not StudyKind.SCALING:
        return None
    first = study.arms[0].ranks
    known = [(first, 1.0, 1.0, 1.0)]
    known += [
        (arm.ranks, contrast.efficiency, contrast.efficiency_low, contrast.efficiency_high)
        for arm, contrast in zip(study.arms[1:], study.contrasts, strict=True)
        if contrast.efficiency is not None
        and contrast.efficiency_low is not None
        and contrast.efficiency_high is not None
    ]
    known.sort()
    if len(known) == 1:
        return None
    x = Scale(
        low=math.log2(known[0][0]), high=math.log2(known[-1][0]),
        start=curves.LEFT + 30, end=curves.WIDTH - curves.RIGHT - 30,
    )  # fmt: skip
    top = max(1.1, *(high for _, _, _, high in known))
    y = Scale(low=0.0, high=top, start=curves.HEIGHT - curves.BOTTOM, end=curves.TOP)
    points = tuple(
        RankPoint(
            x=x.at(math.log2(ranks)),
            y=y.at(share),
            low=y.at(low),
            high=y.at(high),
            label=f"{ranks}",
            words=f"{count(ranks, 'rank')}: {share * 100:.0f} % "
            f"[{low * 100:.0f} %, {high * 100:.0f} %]",
        )
        for ranks, share, low, high in known
    )
    return RankPicture(
        points=points,
        path="M" + "L".join(f"{point.x},{point.y}" for point in points),
        ideal=y.at(1.0),
        y_ticks=tuple(
            Tick(position=y.at(value), label=f"{value * 100:.0f} %") for value in (0, 0.5, 1)
        ),
    )
