"""Throughput and run-time variance: one row of the small table, a table with each kind of run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from report_cases import LINKS
from report_outcomes import REPRODUCED

from gate.comparison.level_records import Performance
from gate.report.assembly import report_of
from gate.report.comment import comment_text, summary_text
from gate.report.judged import performance_words, rate
from gate.report.layout import Limits
from gate.report.page.page import page_html
from gate.training.runs import Commit, RunMode
from gate.verdict.verdict import Verdict

TITLE = "Throughput and run-time variance, not judged"
HEAD, BASE, DEFAULT = (
    Performance(
        commit=commit,
        mode=mode,
        runs=2,
        steps_used=30,
        steps_per_second=per_second,
        samples_per_second=samples,
        step_seconds=1 / per_second,
        step_deviation_seconds=0.02 / per_second,
        step_variation=0.02,
        run_deviation_seconds=0.01 / per_second,
        run_variation=0.01,
    )
    for commit, mode, per_second, samples in (
        (Commit.HEAD, RunMode.STRICT, 80.0, 2560.0),
        (Commit.BASE, RunMode.STRICT, 100.0, None),
        (Commit.HEAD, RunMode.DEFAULT, 125.0, 4000.0),
    )
)


def verdict(*kinds: Performance) -> Verdict:
    return REPRODUCED.model_copy(update={"performance": kinds})


def throughput_words(*kinds: Performance) -> list[str]:
    rows = report_of(verdict(*kinds), LINKS, Limits(deltas=1, rows=9)).overview.rows
    return [row[1].text for row in rows if row[0].text == "Throughput"]


def test_a_speed_that_did_not_move_is_on_the_page_alone() -> None:
    assert throughput_words(HEAD, DEFAULT) == []
    near = BASE.model_copy(update={"steps_per_second": 83.0})
    assert throughput_words(HEAD, DEFAULT, near) == []
    noisy = BASE.model_copy(update={"step_variation": 0.5})
    assert throughput_words(HEAD, DEFAULT, noisy) == []
    assert TITLE in page_html(verdict(HEAD, DEFAULT), LINKS)


def test_the_small_table_has_one_row_with_base_beside_head() -> None:
    (words,) = throughput_words(HEAD, DEFAULT, BASE)
    assert words == (
        "strict 80 steps/s, 2,560 samples/s (varies by 2 %; base commit 100 steps/s); "
        "default 125 steps/s, 4,000 samples/s (varies by 2 %)"
    )


def test_without_a_figure_there_is_no_row() -> None:
    few = Performance(commit=Commit.HEAD, mode=RunMode.STRICT, runs=2, reason="too few")
    assert performance_words((few,)) == ""
    assert "Throughput |" not in comment_text(verdict(few), LINKS)


def test_summary_and_page_have_the_table_and_the_comment_has_the_row_alone() -> None:
    shown = verdict(HEAD, BASE)
    assert "| base, strict mode | 2 | 100 | — | 10 ms | 0.2 ms (2 %) | 0.1 ms (1 %) |" in (
        summary_text(shown, LINKS)
    )
    assert TITLE in page_html(shown, LINKS)
    assert TITLE not in comment_text(shown, LINKS)


def test_a_kind_that_could_not_be_measured_says_why() -> None:
    few = Performance(commit=Commit.BASE, mode=RunMode.STRICT, runs=2, reason="1 step is too few")
    assert "base, strict mode: 1 step is too few" in summary_text(verdict(HEAD, few), LINKS)


@given(st.floats(1e-9, 1e9))
def test_a_rate_keeps_three_digits(per_second: float) -> None:
    shown = float(rate(per_second).replace(",", ""))
    assert abs(shown - per_second) <= 0.005 * per_second
