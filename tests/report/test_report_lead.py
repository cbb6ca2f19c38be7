"""What is read of a comment: sixty words, whole sentences, four rows, and both curves."""

from __future__ import annotations

import re
from dataclasses import replace

from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st
from lead_words import lead, words_before_table
from report_cases import LINKS
from report_hostile import HOSTILE, poisoned
from report_outcomes import BROKEN_SERIES, CASES, CODE_DRIFT, ERROR, NONDETERMINISTIC, REPRODUCED

from gate.comparison.differences import EventKind
from gate.report.assembly import report_of
from gate.report.comment import COMMENT_LIMITS, comment_text
from gate.report.drawing import drawing
from gate.report.layout import GAP, Brief, bucket_of, sparklines
from gate.report.lead import MOST_WORDS, lead_of, word_count
from gate.verdict.verdict import NextStep, Outcome, Verdict

WHOLE = st.sampled_from(("word", "two words", "a file of 12 lines", "x" * 90))
TEXTS = st.lists(WHOLE, min_size=1, max_size=90).map(" ".join)


@each_row("name", CASES)
def test_every_outcome_is_said_in_sixty_words(name: str) -> None:
    assert words_before_table(comment_text(CASES[name], LINKS)) <= MOST_WORDS


@each_row("name", CASES)
def test_every_outcome_says_what_happened_whose_it_is_and_what_to_do(name: str) -> None:
    """The grades of a reviewer: an answer to each of the three without a click."""
    seen = lead(comment_text(CASES[name], LINKS))
    assert seen.count("**Is it this change?** ") == seen.count("**What now?**") == 1
    assert "See below." not in seen


@each_row("name", CASES)
def test_nothing_is_cut_inside_a_sentence(name: str) -> None:
    assert "…" not in comment_text(CASES[name], LINKS)


@given(st.sampled_from(sorted(CASES)), HOSTILE | TEXTS.map(lambda text: text[:190]))
def test_any_text_leaves_sixty_words(name: str, text: str) -> None:
    comment = comment_text(poisoned(CASES[name], text), LINKS, gate_id="lm")
    assert words_before_table(comment) <= MOST_WORDS


@given(st.lists(TEXTS, max_size=4), st.lists(TEXTS, max_size=4), st.lists(TEXTS, max_size=4))
def test_what_is_shown_are_whole_sentences_of_the_answers(
    told: list[str], whose: list[str], steps: list[str]
) -> None:
    told, whose, steps = ([f"It is {one}." for one in many] for many in (told, whose, steps))
    report = replace(
        report_of(CODE_DRIFT, LINKS, COMMENT_LIMITS),
        brief=Brief(answer=" ".join(told), cause="", more="", this_change=" ".join(whose)),
        next_steps=tuple(NextStep(text=one, command="") for one in steps),
    )
    shown = lead_of(report, "a title")
    assert set(shown.happened) <= {*told, "See below."}
    assert [step.text for step in shown.steps] == steps[: len(shown.steps)]
    said = (*shown.happened, *shown.this_change, *(step.text for step in shown.steps))
    assert word_count(" ".join(said)) <= MOST_WORDS


def test_the_longest_named_line_is_seen_with_what_to_do_about_it() -> None:
    """An environment of gymnasium that nobody seeds any more: nothing of it is folded."""
    assert NONDETERMINISTIC.diagnosis is not None
    (suspect, *_) = NONDETERMINISTIC.diagnosis.suspects
    place = {"place": "reinforce.py:45", "call": "gymnasium.Env.reset"}
    suspect = suspect.model_copy(update={**place, "used": "step 1's input of the model"})
    diagnosis = NONDETERMINISTIC.diagnosis.model_copy(
        update={"first_step": 1, "kind": EventKind.INPUT, "suspects": (suspect,)}
    )
    remedy = "Pass seed= to reset() at reinforce.py:45, or to the model that calls it."
    update = {
        "diagnosis": diagnosis,
        "named_unchanged": True,
        "next_steps": (NextStep(text=remedy, command=""),),
    }
    seen = lead(comment_text(NONDETERMINISTIC.model_copy(update=update), LINKS))
    assert "Cause: reinforce.py:45 takes a seed from the machine by gymnasium.Env.reset()" in seen
    assert f"**What now?** {remedy}" in seen
    assert "this change?** Not known." in seen


def test_what_found_no_room_is_folded() -> None:
    long = f"Run strict-1: {'a long message ' * 40}end."
    comment = comment_text(ERROR.model_copy(update={"cause": long}), LINKS)
    assert "\n\nSee below.\n\n**Is it this change?**" in comment
    fold = comment.partition("<details><summary>The rest of the answer</summary>")[2]
    assert "a long message end." in fold.partition("</details>")[0]


def test_a_short_answer_has_no_fold() -> None:
    assert "The rest of the answer" not in comment_text(REPRODUCED, LINKS)


@each_row("name", CASES)
def test_every_sentence_and_every_step_is_said_once(name: str) -> None:
    report = report_of(CASES[name], LINKS, COMMENT_LIMITS)
    shown = lead_of(report, report.headline)
    happened = (*shown.happened, *shown.rest.happened)
    assert len(set(happened)) == len(happened)
    # but for what the title has said
    unsaid = report.brief.happened
    for sentence in happened:
        assert sentence in unsaid
        unsaid = unsaid.replace(sentence, "")
    assert unsaid.strip(" .").casefold() in report.headline.casefold()
    assert " ".join((*shown.this_change, *shown.rest.this_change)) == report.brief.this_change
    steps = (*shown.steps, *shown.rest.steps)
    assert set(report.next_steps) <= set(steps)
    assert len(set(steps)) == len(steps)


@each_row("name", CASES)
def test_four_rows_decide_and_the_others_are_folded(name: str) -> None:
    report = report_of(CASES[name], LINKS, COMMENT_LIMITS)
    assert len(report.deciding.rows) <= 4
    comment = comment_text(CASES[name], LINKS)
    assert all(row[0].text in comment for row in report.overview.rows)


@each_row(
    ("name", "row"),
    [
        ("code-drift", "Against the baseline"),
        ("environment-drift", "Against the base commit, run here"),
        ("data-drift", "Declared data"),
        ("resume-differs", "Resumed run"),
        ("checkpoint-torn", "Killed inside the save"),
    ],
)
def test_the_row_that_decides_is_seen(name: str, row: str) -> None:
    report = report_of(CASES[name], LINKS, COMMENT_LIMITS)
    assert row in [question.text for question, _ in report.deciding.rows]


def test_both_curves_stand_on_one_scale_with_the_first_difference_marked() -> None:
    title, baseline, own, mark = drawing(CODE_DRIFT)
    assert title == "loss, steps 1 to 24"
    assert re.fullmatch(r"baseline     [▁-█]{24} 0\.4718", baseline)
    assert re.fullmatch(r"this change  [▁-█]{24} 0\.4888", own)
    # the first letter of the blocks is step 1
    assert mark == f"{' ' * (len('baseline     ') + 6)}▲ first difference: step 7"


def test_equal_results_are_drawn_once() -> None:
    title, line = drawing(REPRODUCED)
    assert title == "loss, steps 1 to 24: this change = baseline"
    assert re.fullmatch(r"[▁-█]{24} 0\.4718", line)


def test_two_runs_that_differ_are_the_two_curves() -> None:
    _, first, second, _ = drawing(NONDETERMINISTIC)
    assert (first.split()[0], second.split()[0]) == ("strict-1", "strict-2")


def test_what_is_no_number_is_a_gap_in_its_own_curve() -> None:
    _, _, own, _ = drawing(CASES["nan"])
    assert own == f"this change  {GAP * 24} nan"
    gaps = drawing(REPRODUCED.model_copy(update={"series": (BROKEN_SERIES,)}))[1]
    assert gaps.count(GAP) == 2


def test_without_a_comparison_this_change_is_drawn_alone() -> None:
    assert drawing(CASES["no-baseline"])[1].startswith("this change  ")
    assert drawing(CASES["error"]) == ()


def test_other_steps_than_the_baselines_are_not_laid_over_them() -> None:
    assert len(drawing(CASES["not-comparable"])) == 2


@given(st.integers(1, 500), st.data())
def test_a_mark_stands_below_the_value_that_it_means(count: int, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, count - 1))
    values = [1.0 if at == place else 0.0 for at in range(count)]
    (line,) = sparklines((values,), 26)
    assert line[bucket_of(place, count, 26)] == "█" if count > 1 else "▅"


@given(HOSTILE)
def test_a_curve_of_any_name_has_as_many_lines(text: str) -> None:
    for verdict in (CODE_DRIFT, NONDETERMINISTIC):
        lines = drawing(poisoned(verdict, text))
        assert all("\n" not in line for line in lines)


def test_outcomes_that_pass_have_nothing_to_do_but_a_look() -> None:
    passing = [verdict for verdict in CASES.values() if verdict.passes]
    assert {verdict.outcome for verdict in passing} >= {Outcome.REPRODUCED}
    assert all(_nothing_or_review(verdict) for verdict in passing)


def _nothing_or_review(verdict: Verdict) -> bool:
    seen = lead(comment_text(verdict, LINKS))
    return "**What now?** Nothing to do." in seen or "Review the new baseline" in seen
