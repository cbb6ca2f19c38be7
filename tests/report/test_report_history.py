"""Earlier runs in the report, and the badge."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_reader import Page
from report_cases import COMMIT, LINKS, verdict

from gate.report.comment import comment_text, summary_text
from gate.report.entry_words import history_line, history_row
from gate.report.page.curves import HEIGHT, LEFT, WIDTH
from gate.report.page.page import page_html
from gate.report.page.pictures import SHAPES, HistoryPicture, history_picture
from gate.report.runner_files import badge_json
from gate.verdict.history import HistoryLine, read_history, with_line
from gate.verdict.verdict import Outcome, Verdict

NOW = "2026-03-20T12:00:00+00:00"


def line(day: int, last: str = "1.5", outcome: Outcome = Outcome.REPRODUCED) -> HistoryLine:
    return HistoryLine(
        judged_at=f"2026-03-{day:02}T12:00:00+00:00",
        commit=f"{day:07x}" + "a" * 33,
        outcome=outcome,
        passes=outcome is Outcome.REPRODUCED,
        metric="loss",
        last=last,
        cost_ratio=1 + day / 100,
    )


def passed() -> Verdict:
    return verdict(Outcome.REPRODUCED, passes=True)


def row(*lines: HistoryLine) -> tuple[str, ...]:
    made = history_row(lines, NOW)
    assert made is not None
    return tuple(cell.text for cell in made)


def test_the_row_says_when_the_loss_moved_what_it_costs_and_what_did_not_repeat() -> None:
    title, words = row(
        line(1, "1.75"),
        line(8),
        line(9, "7", Outcome.NONDETERMINISTIC),
        line(10, "", Outcome.ERROR),
        line(11),
    )
    assert title == "Last 5 runs on the default branch"
    assert words == (
        "✅✅❌⛔✅ · loss last moved 12 days ago, in commit 0000008 · cost ▁▆▇██ +11.0 % · "
        "1 did not repeat"
    )


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ((line(19),), "loss did not move in 1 run"),
        ((line(18), line(19)), "loss did not move in 2 runs"),
        ((line(18, "2"), line(20)), "loss last moved today"),
        # clocks need not agree
        ((line(18, "2"), line(25)), "loss last moved today"),
        ((line(18, "2"), line(19)), "loss last moved 1 day ago"),
    ],
)
def test_when_it_moved(lines: tuple[HistoryLine, ...], words: str) -> None:
    assert words in row(*lines)[1]


def test_without_a_result_nothing_is_said_of_one() -> None:
    assert row(line(1, "", Outcome.ERROR))[1] == "⛔ · cost +1.0 %"
    assert history_row((), NOW) is None


def test_twenty_are_drawn_and_more_are_searched() -> None:
    lines = (line(1, "9"), *(line(2) for _ in range(30)))
    title, words = row(*lines)
    assert title == "Last 20 runs on the default branch"
    assert words.startswith("✅" * 20 + " · loss last moved 18 days ago")


def test_comment_summary_and_page_show_it_and_escape_it() -> None:
    hostile = line(3).model_copy(update={"metric": "<script>@a|b", "last": "[x](http://y)"})
    links = replace(LINKS, history=(line(2), hostile))
    made_of = passed()
    for text in (comment_text(made_of, links), summary_text(made_of, links)):
        assert "Last 2 runs on the default branch" in text
        assert "On the default branch (2)" in text
        assert "<script>" not in text
        assert "[x](" not in text
    page = page_html(made_of, links)
    assert "Last 2 runs on the default branch" in page
    assert "<script>" not in page


def picture(*lines: HistoryLine) -> HistoryPicture:
    made = history_picture(lines)
    assert made is not None
    return made


def test_the_strip_has_a_letter_and_a_shape_for_each_verdict() -> None:
    failed = line(2).model_copy(update={"outcome": Outcome.CODE_DRIFT, "passes": False})
    # a pass by its outcome that costs too much did not pass
    dear = line(3).model_copy(update={"passes": False})
    unsteady, stopped = line(4, "7", Outcome.NONDETERMINISTIC), line(5, "", Outcome.ERROR)
    made = picture(line(1), failed, dear, unsteady, stopped, line(6))
    assert "".join(cell.letter for cell in made.cells) == "PFFNEP"
    shapes = {cell.letter: cell.path.partition("m")[2] for cell in made.cells}
    assert len(set(shapes.values())) == len(set(SHAPES.values())) == 4
    assert [kind.words for kind in made.legend] == [
        "P: passed, 2 runs",
        "F: failed, 2 runs",
        "N: did not repeat, 1 run",
        "E: error, 1 run",
    ]
    assert made.cells[1].words == "2026-03-02 0000002 code-drift"


def test_the_curves_have_a_title_a_unit_and_days() -> None:
    loss, cost = picture(line(1, "1.75"), line(2, "", Outcome.ERROR), line(8), line(9)).charts
    assert (loss.title, loss.y_title) == ("last value of loss", "last value")
    assert (cost.title, cost.y_title) == (
        "cost of determinism",
        "strict mode takes longer by, %",
    )
    assert [tick.label for tick in loss.x_ticks] == ["2026-03-01", "2026-03-08", "2026-03-09"]
    assert loss.lines[0].words == "3 runs, now 1.5, lowest 1.5, highest 1.75"
    assert cost.lines[0].words == "4 runs, now +9.0 %, lowest +1.0 %, highest +9.0 %"


def test_what_is_no_number_and_another_metric_are_not_drawn() -> None:
    other = line(2, "9").model_copy(update={"metric": "accuracy"})
    odd = (line(3, "nan"), line(4, "inf"), line(5, "x"), line(6, "2"), line(7))
    loss = picture(line(1, "1.75"), other, *odd).charts[0]
    assert loss.lines[0].words == "3 runs, now 1.5, lowest 1.5, highest 2"
    assert picture(line(1)).charts == ()
    assert history_picture(()) is None


def test_the_page_draws_twenty_verdicts_and_the_comment_none() -> None:
    links = replace(LINKS, history=tuple(line(1 + place % 28) for place in range(40)))
    page = Page(page_html(passed(), links))
    # in the caption, and for those who cannot see the picture
    assert page.text.count("Last 20 verdicts on the default branch") == 2
    assert page.classes("letter") == 20
    assert "last value of loss over the runs on the default branch" in page.text
    for text in (comment_text(passed(), links), summary_text(passed(), links)):
        assert "verdicts on the default branch" not in text


@given(st.lists(st.floats(allow_nan=False).map(repr), min_size=2, max_size=30))
def test_every_run_lies_inside_the_picture(values: list[str]) -> None:
    made = picture(*(line(1, value) for value in values))
    assert all(0 < cell.x < made.width for cell in made.cells)
    for drawn in made.charts:
        places = re.findall(r"(-?[0-9.]+),(-?[0-9.]+)", drawn.lines[0].path)
        assert all(LEFT <= float(x) <= WIDTH and 0 <= float(y) <= HEIGHT for x, y in places)


def test_without_a_history_a_report_says_nothing_of_it() -> None:
    assert "default branch" not in comment_text(passed(), LINKS)


def test_the_line_of_a_verdict_can_be_read_again() -> None:
    made = history_line(passed())
    assert (made.outcome, made.commit, made.passes) == (Outcome.REPRODUCED, COMMIT, True)
    assert made.last
    assert read_history(with_line(b"", made), "x").lines == (made,)


@pytest.mark.parametrize(
    ("changed", "message", "colour"),
    [
        ({}, "reproduced", "brightgreen"),
        ({"outcome": Outcome.BASELINE_CHANGE}, "baseline-change", "yellow"),
        ({"passes": False, "over_budget": True}, "over budget", "red"),
        ({"passes": False, "outcome": Outcome.CODE_DRIFT}, "code-drift", "red"),
        ({"passes": False, "outcome": Outcome.ERROR}, "error", "lightgrey"),
    ],
)
def test_the_badge_is_what_the_endpoint_reads(
    changed: dict[str, object], message: str, colour: str
) -> None:
    changed_verdict: Verdict = passed().model_copy(update=changed)
    assert json.loads(badge_json(changed_verdict, gate_id="gpu")) == {
        "schemaVersion": 1,
        "label": "repro-gate (gpu)",
        "message": message,
        "color": colour,
    }
    assert json.loads(badge_json(changed_verdict))["label"] == "repro-gate"
