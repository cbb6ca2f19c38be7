"""What the client refuses and never shows, and the one comment that it keeps."""

from __future__ import annotations

import pytest
from fake_github import Failure, FakeGitHub
from github_client import connect

from gate.edges.github import GitHubComments
from gate.edges.github_http import Patience
from gate.errors import PublishError
from gate.records.report import Publication
from gate.report.sticky import publish

MARKER = "<!-- repro-gate:default -->"


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("failure", [*Failure])
def test_no_failure_shows_the_token(github: FakeGitHub, method: str, failure: Failure) -> None:
    github.fail_next(method, *[failure] * 4)
    with connect(github, timeout_seconds=0.05) as client:
        error = _error_of(client, method)
    assert github.token not in f"{error}{error!r}{error and error.__cause__!r}"


def _error_of(client: GitHubComments, method: str) -> PublishError | None:
    try:
        _ = client.listed() if method == "GET" else client.create("text")
    except PublishError as error:
        return error
    return None


@pytest.mark.parametrize("token", ["", "secret\n", "sec ret", "s\xe9cret"])
def test_a_malformed_token_is_refused_without_being_shown(github: FakeGitHub, token: str) -> None:
    with pytest.raises(PublishError) as caught:
        GitHubComments(api_url=github.api_url, repository="org/repo", number=7, token=token)
    assert str(caught.value) == (
        "the GitHub token is empty or holds a character that no token has\n"
        "hint: Pass the token of this job, without quotes or line ends."
    )


@pytest.mark.parametrize("api_url", ["", "api.github.com", "file:///etc", "https://"])
def test_an_address_that_is_none_is_refused(api_url: str) -> None:
    with pytest.raises(PublishError, match="is no address of an API"):
        GitHubComments(api_url=api_url, repository="org/repo", number=7, token="token")


@pytest.mark.parametrize("repository", ["", "repo", "org/repo/issues", "org/re po", "../.."])
def test_a_repository_that_is_none_is_refused(repository: str) -> None:
    with pytest.raises(PublishError, match="is no repository"):
        GitHubComments(
            api_url="https://api.github.example", repository=repository, number=7, token="token"
        )


def test_nobody_answers_at_that_address() -> None:
    with FakeGitHub() as github:
        api_url = github.api_url
    with (
        GitHubComments(
            api_url=api_url,
            repository="org/repo",
            number=7,
            token="token",
            patience=Patience(backoff_seconds=0.0),
        ) as client,
        pytest.raises(PublishError, match="could not be reached"),
    ):
        client.listed()


def test_one_comment_is_kept_over_three_gates(github: FakeGitHub, client: GitHubComments) -> None:
    github.add(f"{MARKER}\nplanted")
    actions = [publish(client, marker=MARKER, body=f"{MARKER}\n{text}").action for text in "aab"]
    assert actions == ["created", "unchanged", "updated"]
    assert [one.body for one in github.comments] == [f"{MARKER}\nplanted", f"{MARKER}\nb"]


def test_a_read_only_token_leaves_a_reason(github: FakeGitHub, client: GitHubComments) -> None:
    github.fail_next("POST", Failure.REFUSED)
    publication = publish(client, marker=MARKER, body=MARKER)
    assert publication == Publication(
        reason_not_posted="the token may not comment on this pull request (403). Give the job the "
        "permission `pull-requests: write`. A pull request from a fork never gets it: the job "
        "summary holds the report."
    )
