"""Which comment is replaced, and what happens when none may be written."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_outcomes import CASES

from gate.errors import PublishError
from gate.report.comment import (
    Create,
    Decision,
    Publication,
    Unchanged,
    Update,
    comment_change,
    creates_comment,
    publish_comment,
)
from gate.settings.gate_settings import CommentPolicy
from gate.system.github.records import Comment

BOT = "github-actions[bot]"
MARKER = "<!-- repro-gate:default -->"
OURS = Comment(
    comment_id=2, author="github-actions[bot]", body=f"{MARKER}\nold", url="https://x.example/2"
)


class KeptComments:
    """Comments in memory; `fault` is what every call ends with."""

    def __init__(self, *comments: Comment, fault: PublishError | None = None) -> None:
        self.kept = list(comments)
        self._fault = fault

    def author(self) -> str:
        return BOT

    def listed(self) -> list[Comment]:
        if self._fault:
            raise self._fault
        return self.kept

    def create(self, body: str) -> Comment:
        self.kept.append(replace(OURS, comment_id=9, body=body, url="https://x.example/9"))
        return self.kept[-1]

    def update(self, comment_id: int, body: str) -> Comment:
        index = [comment.comment_id for comment in self.kept].index(comment_id)
        self.kept[index] = replace(self.kept[index], body=body)
        return self.kept[index]


def decision(*comments: Comment, body: str = f"{MARKER}\nnew") -> Decision:
    return comment_change(comments, author=BOT, marker=MARKER, body=body)


def test_no_comment_yet() -> None:
    assert decision() == Create()


def test_our_own_comment_is_replaced() -> None:
    assert decision(OURS) == Update(comment_id=2)


def test_the_same_text_is_left_alone() -> None:
    stored = replace(OURS, body=f"{MARKER}\r\nnew")
    assert decision(stored, body=f"{MARKER}\nnew\n") == Unchanged(url="https://x.example/2")


def test_a_marker_planted_by_somebody_else_is_no_comment_of_ours() -> None:
    assert decision(replace(OURS, author="somebody")) == Create()


def test_a_bots_comment_that_quotes_the_marker_is_none_either() -> None:
    assert decision(replace(OURS, body=f"> {MARKER}\n{MARKER}")) == Create()


def test_another_gates_comment_is_left() -> None:
    assert decision(replace(OURS, body="<!-- repro-gate:default-2 -->\nold")) == Create()


def test_the_first_match_wins() -> None:
    assert decision(OURS, replace(OURS, comment_id=3)) == Update(comment_id=2)


def test_publishing_three_times_keeps_one_comment() -> None:
    comments = KeptComments()
    bodies = [f"{MARKER}\n{text}" for text in ("a", "a", "b")]
    told = [publish_comment(comments, marker=MARKER, body=body) for body in bodies]
    assert [one.action for one in told] == ["created", "unchanged", "updated"]
    assert {one.comment_url for one in told} == {"https://x.example/9"}
    assert [comment.body for comment in comments.kept] == [f"{MARKER}\nb"]


def test_after_a_result_that_needs_no_comment_only_an_older_one_is_replaced() -> None:
    comments, older = KeptComments(), KeptComments(OURS)
    assert publish_comment(comments, marker=MARKER, body=MARKER, create=False) == Publication(
        reason_not_posted="report.comment asks for none after this result"
    )
    assert comments.kept == []
    told = publish_comment(older, marker=MARKER, body=f"{MARKER}\ngreen", create=False)
    assert (told.action, older.kept[0].body) == ("updated", f"{MARKER}\ngreen")


@pytest.mark.parametrize(
    ("policy", "commented"),
    [
        (CommentPolicy.ALWAYS, set(CASES)),
        (CommentPolicy.CHANGES, set(CASES) - {"reproduced", "one-run", "unaffected"}),
        (CommentPolicy.FAILURES, {name for name, verdict in CASES.items() if not verdict.passes}),
        (CommentPolicy.NEVER, set()),
    ],
)
def test_the_policy_says_after_which_results_there_is_a_comment(
    policy: CommentPolicy, commented: set[str]
) -> None:
    assert {
        name for name, verdict in CASES.items() if creates_comment(policy, verdict)
    } == commented


def test_a_refusal_is_told_and_not_raised() -> None:
    refused = KeptComments(fault=PublishError("the token may not comment", hint="Grant it."))
    assert publish_comment(refused, marker=MARKER, body=MARKER) == Publication(
        reason_not_posted="the token may not comment. Grant it."
    )


def test_a_refusal_without_a_hint_is_told_too() -> None:
    refused = KeptComments(fault=PublishError("GitHub is gone"))
    assert (
        publish_comment(refused, marker=MARKER, body=MARKER).reason_not_posted == "GitHub is gone"
    )
