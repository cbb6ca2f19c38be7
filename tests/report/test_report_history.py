"""Earlier runs in the report, and the badge."""

from __future__ import annotations

import json
from dataclasses import replace

from each_row import each_row
from report_cases import COMMIT, LINKS, verdict

from gate.fleet.lines import CallFacts, verdict_line
from gate.report.comment import comment_text, summary_text
from gate.report.entry_words import history_row
from gate.report.page.page import page_html
from gate.report.runner_files import badge_json
from gate.verdict.history_lines import HistoryLine, read_history, with_line
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


@each_row(
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
    assert "On the default branch (2)" in page
    assert "<script>" not in page


def test_without_a_history_a_report_says_nothing_of_it() -> None:
    assert "default branch" not in comment_text(passed(), LINKS)


def test_the_line_of_a_verdict_can_be_read_again() -> None:
    made = verdict_line(passed(), CallFacts())
    assert (made.outcome, made.commit, made.passes) == (Outcome.REPRODUCED, COMMIT, True)
    assert made.last
    assert read_history(with_line(b"", made), "x").lines == (made,)


@each_row(
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
