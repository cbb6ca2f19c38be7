"""The pull request of a workflow that has ended, asked of a server that plays GitHub."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_github import FakeGitHub
from github_client import AT_ONCE
from github_failures import Failure

from gate.errors import PublishError
from gate.system.github.pull_requests import find_pull_request
from gate.system.github.records import PullRequest, RunOrigin

HEAD, BASE = "b" * 40, "c" * 40
ORIGIN = RunOrigin(
    head_sha=HEAD, head_repository="ada/model", head_owner="ada", head_branch="fix#1&x=y"
)


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    with FakeGitHub(prefix="/api/v3") as server:
        yield server


def find(github: FakeGitHub) -> PullRequest:
    return find_pull_request(
        api_url=github.api_url,
        repository="o/model",
        token=github.token,
        origin=ORIGIN,
        policy=AT_ONCE,
    )


def test_the_one_with_that_head_is_found_and_a_fork_is_known(github: FakeGitHub) -> None:
    github.open_pull(number=6, head="d" * 40, base=BASE, fork="ada/model")
    github.open_pull(number=7, head=HEAD, base=BASE, fork="ada/model", into="v/1")
    assert find(github) == PullRequest(
        number=7, head_sha=HEAD, base_sha=BASE, base_branch="v/1", from_fork=True
    )
    (request,) = github.requests
    assert "head=ada%3Afix%231%26x%3Dy" in request.path


@pytest.mark.parametrize(
    ("others", "number"), [(["mallory/model"], "no"), (["ada/model"] * 2, "2")], ids=["none", "two"]
)
def test_one_of_another_fork_or_of_two_is_none(
    github: FakeGitHub, others: list[str], number: str
) -> None:
    for place, fork in enumerate(others):
        github.open_pull(number=place, head=HEAD, base=BASE, fork=fork)
    with pytest.raises(
        PublishError, match=f"^{number} open pull requests have the head bbbbbbbbbbbb"
    ):
        find(github)


def test_an_answer_of_another_kind_is_refused(github: FakeGitHub) -> None:
    github.fail_next("GET", Failure.NOT_JSON)
    with pytest.raises(PublishError, match="the answer does not come from GitHub's API"):
        find(github)
