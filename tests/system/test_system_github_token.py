"""What a token may do, asked of the server that plays GitHub."""

from __future__ import annotations

import pytest
from fake_github import FakeGitHub
from github_failures import Failure

from gate.system.github.pull_requests import probe_token
from gate.system.github.records import TokenSeen


def _probe(github: FakeGitHub, number: int | None = 7) -> TokenSeen:
    return probe_token(github.api_url, "org/repo", github.token, number=number)


def test_a_token_that_may_comment_is_known_without_a_comment() -> None:
    with FakeGitHub(prefix="/api/v3") as github:
        assert _probe(github) == TokenSeen(repository_status=200, comment_status=422)
        assert [(seen.method, seen.path, seen.body) for seen in github.requests] == [
            ("GET", "/api/v3/repos/org/repo", b""),
            ("POST", "/api/v3/repos/org/repo/issues/7/comments", b"{}"),
        ]
        assert github.comments == ()


def test_a_token_that_may_only_read_is_known(github: FakeGitHub) -> None:
    github.fail_next("POST", Failure.REFUSED)
    assert _probe(github).comment_status == 403


def test_nothing_is_posted_away_from_a_pull_request(github: FakeGitHub) -> None:
    assert _probe(github, number=None).comment_status == 0
    assert github.methods() == ["GET"]


def test_who_may_write_contents_is_known_without_a_branch(github: FakeGitHub) -> None:
    seen = probe_token(github.api_url, "org/repo", github.token, contents=True)
    assert seen == TokenSeen(repository_status=200, contents_status=422)
    assert [(one.method, one.path, one.body) for one in github.requests][1:] == [
        ("POST", "/repos/org/repo/git/refs", b"{}")
    ]
    assert github.branches.refs == {}
    github.branches.allowed = False
    seen = probe_token(github.api_url, "org/repo", github.token, contents=True)
    assert seen.contents_status == 403


def test_an_unknown_token_is_told_by_its_status(github: FakeGitHub) -> None:
    assert probe_token(github.api_url, "org/repo", "another").repository_status == 401


def test_a_renamed_repository_is_found(github: FakeGitHub) -> None:
    github.fail_next("GET", Failure.MOVED_HERE)
    assert _probe(github) == TokenSeen(repository_status=200, comment_status=422)


def test_the_token_is_sent_to_no_other_host(github: FakeGitHub) -> None:
    github.fail_next("GET", Failure.MOVED_TO_ANOTHER_HOST)
    seen = _probe(github)
    assert seen.problem == (
        "GitHub redirected the request to another host; the redirect was not followed"
    )
    assert github.methods() == ["GET"]


@pytest.mark.parametrize(
    ("failure", "problem"),
    [
        (Failure.SECONDARY_LIMIT, "GitHub's rate limit is used up for another 60 s (403)"),
        (Failure.LIMITED_FOR_LONG, "GitHub's rate limit is used up for another 3,600 s (429)"),
        (Failure.UNAVAILABLE, "GitHub reported a server error (503)"),
    ],
)
def test_what_only_time_can_mend_is_no_missing_permission_and_not_waited_for(
    github: FakeGitHub, failure: Failure, problem: str
) -> None:
    github.fail_next("POST", failure)
    seen = _probe(github)
    assert (seen.problem, seen.comment_status) == (problem, 0)
    assert seen.fix.startswith("Run the job again")
    assert github.methods() == ["GET", "POST"]


def test_a_token_never_stands_in_a_problem(github: FakeGitHub) -> None:
    github.fail_next("GET", Failure.CUT)
    seen = _probe(github)
    assert seen.problem == f"{github.origin} could not be reached (ConnectionError)"
    assert seen.fix.startswith("Check the network, the proxy and its certificates")


@pytest.mark.parametrize(
    ("url", "token", "problem"),
    [
        ("ftp://x", "token", "'ftp://x' is not the address of an API"),
        ("http://x", "a\nb", "the GitHub token is empty or has an invalid character"),
    ],
)
def test_what_is_no_address_and_no_token_is_not_sent(url: str, token: str, problem: str) -> None:
    assert probe_token(url, "org/repo", token).problem == problem
