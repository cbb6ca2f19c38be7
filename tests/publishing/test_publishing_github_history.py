"""Files on a branch of their own, against a server that plays GitHub."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from fake_github import FakeGitHub
from github_client import AT_ONCE
from github_failures import Failure

from gate.errors import PublishError
from gate.publishing.history_branch import HistoryBranch

BRANCH = "repro-gate-history"


def added(old: bytes) -> Mapping[str, bytes]:
    return {"a.jsonl": old + b"new\n", "a.badge.json": b"{}"}


def change(github: FakeGitHub) -> None:
    branch = HistoryBranch(
        api_url=github.api_url, repository="o/model", token=github.token, policy=AT_ONCE
    )
    branch.change(BRANCH, "a.jsonl", "a line", added)


def test_the_first_line_makes_a_branch_without_a_parent(github: FakeGitHub) -> None:
    change(github)
    assert github.branches.files(BRANCH) == {"a.jsonl": "new\n", "a.badge.json": "{}"}
    (commit,) = github.branches.commits.values()
    assert (commit["parents"], commit["message"]) == ([], "a line")


def test_a_later_line_keeps_what_is_there(github: FakeGitHub) -> None:
    github.branches.put(BRANCH, {"a.jsonl": "old\n", "b.jsonl": "another gate's\n"})
    change(github)
    files = github.branches.files(BRANCH)
    assert (files["a.jsonl"], files["b.jsonl"]) == ("old\nnew\n", "another gate's\n")


def test_of_two_jobs_at_once_no_line_is_lost(github: FakeGitHub) -> None:
    # the first makes the branch, the second moves it on, each between our look and our write
    github.branches.meanwhile = [{"a.jsonl": "one\n"}, {"a.jsonl": "one\ntwo\n"}]
    change(github)
    assert github.branches.files(BRANCH)["a.jsonl"] == "one\ntwo\nnew\n"


def test_a_branch_that_never_stands_still_is_given_up(github: FakeGitHub) -> None:
    github.branches.meanwhile = [{"a.jsonl": f"{number}\n"} for number in range(9)]
    with pytest.raises(PublishError, match="the branch of the history could not be moved"):
        change(github)


def test_a_token_that_may_not_write_is_told(github: FakeGitHub) -> None:
    github.branches.allowed = False
    with pytest.raises(PublishError) as caught:
        change(github)
    assert caught.value.message == "the token may not write the history (403)"
    assert "`contents: write`" in caught.value.hint


def test_a_lost_answer_adds_no_second_commit_to_the_branch(github: FakeGitHub) -> None:
    github.fail_next("POST", Failure.SERVER_ERROR)
    change(github)
    assert github.branches.files(BRANCH)["a.jsonl"] == "new\n"
