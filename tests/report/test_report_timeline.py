"""Where a call's time went, for each reader."""

from __future__ import annotations

from each_row import each_row
from report_cases import LINKS
from report_outcomes import REPRODUCED

from gate.report.assembly import report_of
from gate.report.comment import comment_text
from gate.report.judged import long, time_words
from gate.report.layout import Limits
from gate.report.page.page import page_html

LINE = "gate 41 s: trainings 36 s, own 4.9 s"


def test_the_comments_footer_says_where_the_time_went() -> None:
    footer = comment_text(REPRODUCED, LINKS).partition("<sub>")[2].partition("</sub>")[0]
    assert f" · {LINE} · " in footer


def test_without_a_time_nothing_is_said_of_it() -> None:
    verdict = REPRODUCED.model_copy(update={"timeline": None})
    assert "trainings" not in comment_text(verdict, LINKS)
    assert "Timeline" not in page_html(verdict, LINKS)
    assert time_words(None) == ""


@each_row(
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
