"""Where a call's time went, for each reader."""

from __future__ import annotations

import re

import pytest
from report_cases import LINKS, TIMELINE
from report_outcomes import REPRODUCED

from gate.report.assembly import report_of
from gate.report.comment import comment_text
from gate.report.judged import long, time_words
from gate.report.layout import Limits
from gate.report.page.page import page_html
from gate.report.page.pictures import MAX_LANES, timeline_picture
from gate.training.timeline import TimedRun
from gate.verdict.verdict import Verdict

LINE = "gate 41 s: trainings 36 s, own 4.9 s"


def test_the_comments_footer_says_where_the_time_went() -> None:
    footer = comment_text(REPRODUCED, LINKS).partition("<sub>")[2].partition("</sub>")[0]
    assert f" · {LINE} · " in footer


def test_without_a_time_nothing_is_said_of_it() -> None:
    verdict = REPRODUCED.model_copy(update={"timeline": None})
    assert "trainings" not in comment_text(verdict, LINKS)
    assert "Time:" not in page_html(verdict, LINKS)
    assert time_words(None) == ""


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (41.26, "41 s"),
        (599.0, "599 s"),
        (600.0, "10 min"),
        (3599.0, "60 min"),
        (7325.0, "2 h 2 min"),
    ],
)
def test_a_time_is_told_as_exactly_as_it_matters(seconds: float, words: str) -> None:
    assert long(seconds) == words


def test_the_table_holds_runs_and_own_work_in_their_order() -> None:
    report = report_of(REPRODUCED, LINKS, Limits(deltas=9, rows=99))
    (section,) = (one for one in report.sections if one.title.startswith("Timeline"))
    assert section.title == f"Timeline (8): {LINE}"
    rows = [tuple(cell.text for cell in row) for row in section.table.rows]
    assert rows[:3] == [
        ("preparing", "gate", "0.00 s", "1.90 s", "1.90 s"),
        ("default-1", "1", "1.91 s", "12.40 s", "10.49 s"),
        ("reading default-1", "gate", "12.40 s", "13.00 s", "0.60 s"),
    ]
    assert ("strict-2", "2", "14.10 s", "26.77 s", "12.67 s") in rows


def test_each_run_has_a_lane_and_the_gate_one_where_no_run_is_going() -> None:
    picture = timeline_picture(TIMELINE)
    assert picture is not None
    labels = [lane.label for lane in picture.lanes]
    assert labels == ["gate", "default-1", "strict-1", "strict-2", "default-2"]
    own, *runs = picture.lanes
    # before, between the turns, and after: not between strict-1 and strict-2
    assert len(own.bars) == 4
    assert all(0 <= bar.left <= bar.left + bar.width <= 100 for one in runs for bar in one.bars)
    assert runs[2].took == "13 s"


def test_many_runs_are_counted_and_not_all_drawn() -> None:
    runs = tuple(
        TimedRun(label=f"seed-{place}", begun_seconds=place, ended_seconds=place + 1)
        for place in range(40)
    )
    picture = timeline_picture(TIMELINE.model_copy(update={"runs": runs}))
    assert picture is not None
    assert (len(picture.lanes), picture.omitted) == (1 + MAX_LANES, 40 - MAX_LANES)


def test_the_page_draws_the_lanes_in_a_table_that_says_the_same() -> None:
    page = page_html(_named("<i>x</i>"), LINKS)
    assert f"Time: {LINE}</h3>" in page
    table = page.partition('class="lanes"')[2].partition("</table>")[0]
    assert '<code class="short">&lt;i&gt;x&lt;/i&gt;</code>' in table
    assert re.findall(r"<i style=\"left:([\d.]+)%;width:([\d.]+)%\"></i>", table)[-1] == (
        "65.92", "29.45"
    )  # fmt: skip


def _named(label: str) -> Verdict:
    """A verdict whose first run is called that."""
    first, *others = TIMELINE.runs
    runs = (first.model_copy(update={"label": label}), *others)
    return REPRODUCED.model_copy(update={"timeline": TIMELINE.model_copy(update={"runs": runs})})
