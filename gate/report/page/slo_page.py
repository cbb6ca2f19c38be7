"""Render service levels as an HTML page with each indicator's share of good events by day."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gate.fleet.indicators import GroupLevels, SloReport
from gate.report.page.templates import template
from gate.report.slo_views import TITLES, share, slo_headline, slo_notes, slo_sections

WIDTH, HEIGHT = 240, 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Trend:
    """The share of good events by day as a line of SVG; `points` are `x,y` inside the picture.

    `target` is the y of the target's line.
    """

    title: str
    points: str
    target: float
    words: str


def slo_page(report: SloReport) -> str:
    """Return the page, which needs no script and no other file."""
    groups = [
        (section, tuple(_trends(group)))
        for section, group in zip(slo_sections(report), report.groups, strict=False)
    ]
    return template("slo.html").render(
        headline=slo_headline(report),
        notes=slo_notes(report),
        tone="pass" if report.all_met else "fail",
        groups=groups,
        sections=slo_sections(report)[len(groups) :],
        width=WIDTH,
        height=HEIGHT,
    )


def _trends(group: GroupLevels) -> Iterator[Trend]:
    for level in group.levels:
        days = level.days
        if not days:
            continue
        shares = [day.good / day.valid for day in days]
        step = WIDTH / max(1, len(days) - 1)
        points = [f"{number * step:.1f},{_height(share)}" for number, share in enumerate(shares)]
        # a single day needs a second point to be drawn as a line
        points += [f"{WIDTH},{_height(shares[0])}"] if len(days) == 1 else []
        first, last = days[0].day, days[-1].day
        yield Trend(
            title=TITLES[level.indicator],
            points=" ".join(points),
            target=_height(level.target),
            words=f"{first} to {last}: lowest {share(min(shares))}, last {share(shares[-1])}",
        )


def _height(share: float) -> float:
    return round((1 - share) * (HEIGHT - 4) + 2, 1)
