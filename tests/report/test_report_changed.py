"""The changed lines beside a difference: a small diff that shows as itself, and its answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from report_cases import FACTS, diagnosed
from report_hostile import HOSTILE
from report_outcomes import NONDETERMINISTIC, REQUEST, both, entry, judged, ran

from gate.errors import RunError
from gate.evidence.trace import HowKnown, ShownChange
from gate.report.assembly import ReportLinks
from gate.report.brief import brief_of
from gate.report.comment import comment_text
from gate.report.diagnosis_sections import change_words
from gate.report.runner_files import annotation_commands
from gate.system.git.changes import Change, ChangedLines
from gate.verdict.assemble import error_verdict
from gate.verdict.verdict import Outcome

RATE = ChangedLines(
    file="train.py", first=11, last=11, gone=1, before=("lr = 1e-3",), after=("lr = 2e-3",)
)
NOT_KNOWN = "Not known. Only this commit was run; the base commit may not be repeatable either."
NAMED = ShownChange(how=HowKnown.NAMED, hunks=(RATE,))


def test_the_changed_line_stands_in_the_first_block() -> None:
    verdict = judged(
        both(first="parameters", since=6, rate="0.002"),
        against=entry(ran(rate="0.001")),
        change=Change(hunks=(RATE,)),
    )
    comment = comment_text(verdict, ReportLinks())
    block = "The change that fits it:\n\n```diff\n@@ train.py:11 @@\n-lr = 1e-3\n+lr = 2e-3\n```\n"
    assert block in comment.partition("**Is it this change?**")[0]
    assert verdict.next_steps[0].text == "If unintended: undo the change to train.py:11."


@pytest.mark.parametrize(
    ("hunk", "place"),
    [
        (RATE, "file=train.py,line=11,"),
        (
            ChangedLines(file="train.py", first=0, last=0, gone=2, removed=True),
            "file=train.py,line=1,",
        ),
        # a file that is gone, or that has no lines
        (ChangedLines(file="data.bin", first=0, last=0), ""),
    ],
)
def test_the_change_is_annotated_where_the_commit_has_a_line(
    hunk: ChangedLines, place: str
) -> None:
    change = NAMED.model_copy(update={"hunks": (hunk,)})
    verdict = diagnosed(Outcome.CODE_DRIFT).model_copy(update={"change": change})
    assert annotation_commands(verdict, {})[0].startswith(f"::error {place}title=")


@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 2))
def test_six_changed_lines_are_shown_at_most_and_the_rest_is_counted(
    gone: int, new: int, hunks: int
) -> None:
    hunk = ChangedLines(
        file="a.py", first=1, last=max(1, new), removed=not new, gone=gone,
        before=("old",) * min(gone, 6), after=("new",) * min(new, 6),
    )  # fmt: skip
    shown = change_words(ShownChange(how=HowKnown.ONLY, hunks=(hunk,) * hunks))
    assert shown is not None
    lines = [line for line in shown.lines if line[0] in "+-"]
    assert len(lines) <= 6
    counted = [int(line.split()[2]) for line in shown.lines if line.startswith("@@ and")]
    assert len(lines) + sum(counted) == (gone + new) * hunks


@given(HOSTILE)
def test_no_changed_line_leaves_its_block(text: str) -> None:
    hunk = RATE.model_copy(update={"before": (text,), "after": (text,), "file": text})
    verdict = diagnosed(Outcome.CODE_DRIFT).model_copy(
        update={"change": NAMED.model_copy(update={"hunks": (hunk,)})}
    )
    tokens = MarkdownIt().parse(comment_text(verdict, ReportLinks()))
    (block,) = (token for token in tokens if token.type == "fence" and token.info == "diff")
    assert len(block.content.splitlines()) == 3


@pytest.mark.parametrize(
    ("change", "unchanged", "answer"),
    [
        (
            NAMED,
            False,
            (
                "Most likely: train.py:11 is changed in this pull request, and the baseline rests "
                "on 2 equal runs."
            ),
        ),
        (
            None,
            True,
            "Not known. It does not change train.py:28, but the baseline rests on 2 equal runs.",
        ),
        (
            None,
            False,
            NOT_KNOWN,
        ),
    ],
)
def test_a_named_line_answers_whether_it_is_this_change(
    change: ShownChange | None, answer: str, *, unchanged: bool
) -> None:
    verdict = NONDETERMINISTIC.model_copy(
        update={"change": change, "named_unchanged": unchanged, "baseline_facts": FACTS}
    )
    assert brief_of(verdict).this_change == answer


def test_a_line_that_raised_answers_it_too() -> None:
    fault = RunError("it failed", file="train.py", line=11)
    verdict = error_verdict(
        REQUEST, "a" * 40, "2026-08-22T12:00:00+00:00", fault,
        ShownChange(how=HowKnown.RAISED, hunks=(RATE,)),
    )  # fmt: skip
    assert brief_of(verdict).this_change == (
        "Most likely: train.py:11, which raised, is changed in this pull request."
    )


def test_no_changed_line_mentions_anybody() -> None:
    hunk = RATE.model_copy(update={"file": "@team.py", "after": ("@team #1 www.x.org",)})
    verdict = diagnosed(Outcome.CODE_DRIFT).model_copy(
        update={"change": NAMED.model_copy(update={"hunks": (hunk,)})}
    )
    comment = comment_text(verdict, ReportLinks())
    assert "@team" not in comment
    assert "#1" not in comment
