"""What the client refuses and never shows, and the one comment that it keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from each_row import each_row
from fake_github import BOT, FakeGitHub
from github_client import AT_ONCE, connect
from github_failures import Failure

from gate.errors import PublishError
from gate.report.comment import Publication, publish_comment
from gate.system.github.pull_requests import GitHubComments

MARKER = "<!-- repro-gate:default -->"


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("failure", [*Failure])
def test_no_failure_shows_the_token(github: FakeGitHub, method: str, failure: Failure) -> None:
    github.fail_next(method, *[failure] * 4)
    with connect(github, replace(AT_ONCE, timeout_seconds=0.05, answer_seconds=0.05)) as client:
        error = _error_of(client, method)
    assert github.token not in f"{error}{error!r}{error and error.__cause__!r}"


def _error_of(client: GitHubComments, method: str) -> PublishError | None:
    try:
        _ = list(client.listed()) if method == "GET" else client.create("text")
    except PublishError as error:
        return error
    return None


@pytest.mark.parametrize("token", ["", "secret\n", "sec ret", "s\xe9cret"])
def test_a_malformed_token_is_refused_without_being_shown(github: FakeGitHub, token: str) -> None:
    with pytest.raises(PublishError) as caught:
        GitHubComments(api_url=github.api_url, repository="org/repo", number=7, token=token)
    assert str(caught.value) == (
        "the GitHub token is empty or has an invalid character\n"
        "hint: Pass the token of this job, without quotes or line ends."
    )


@pytest.mark.parametrize("api_url", ["", "api.github.com", "file:///etc", "https://"])
def test_an_address_that_is_none_is_refused(api_url: str) -> None:
    with pytest.raises(PublishError, match="is not the address of an API"):
        GitHubComments(api_url=api_url, repository="org/repo", number=7, token="token")


@each_row("repository", ["", "repo", "org/repo/issues", "org/re po", "../.."])
def test_a_repository_that_is_none_is_refused(repository: str) -> None:
    with pytest.raises(PublishError, match="is not a repository"):
        GitHubComments(
            api_url="https://api.github.example", repository=repository, number=7, token="token"
        )


def test_one_comment_is_kept_over_three_gates(github: FakeGitHub, client: GitHubComments) -> None:
    github.add(f"{MARKER}\nplanted")
    actions = [
        publish_comment(client, marker=MARKER, body=f"{MARKER}\n{text}").action for text in "aab"
    ]
    assert actions == ["created", "unchanged", "updated"]
    assert [one.body for one in github.comments] == [f"{MARKER}\nplanted", f"{MARKER}\nb"]


def test_a_read_only_token_leaves_a_reason(github: FakeGitHub, client: GitHubComments) -> None:
    github.fail_next("POST", Failure.REFUSED)
    publication = publish_comment(client, marker=MARKER, body=MARKER)
    assert publication == Publication(
        reason_not_posted="the token may not comment on this pull request (403). Give the job the "
        "permission `pull-requests: write`. A pull request from a fork never gets it: the job "
        "summary holds the report."
    )


def test_ours_is_found_among_ten_thousand_comments(
    github: FakeGitHub, client: GitHubComments
) -> None:
    for _ in range(9_999):
        github.add(f"{MARKER}\nplanted")
    ours = github.add(f"{MARKER}\nold", author=BOT)
    assert publish_comment(client, marker=MARKER, body=f"{MARKER}\nnew").action == "updated"
    assert github.methods() == ["GET"] * 100 + ["PATCH"]
    assert ours.body == f"{MARKER}\nnew"


def test_beyond_twenty_thousand_comments_the_summary_has_to_do(
    github: FakeGitHub, client: GitHubComments
) -> None:
    for _ in range(20_001):
        github.add("x")
    assert publish_comment(client, marker=MARKER, body=MARKER).reason_not_posted == (
        "the pull request has more than 20,000 comments. The job summary holds the report; a new "
        "pull request gets comments again."
    )
    assert len(github.requests) == 200
