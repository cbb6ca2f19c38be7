"""The client against a server that plays GitHub."""

from __future__ import annotations

import pytest
from fake_github import BOT, FakeGitHub
from github_client import connect
from github_failures import Failure

from gate.errors import PublishError
from gate.system.github.pull_requests import GitHubComments

MARKER = "<!-- repro-gate:default -->"


def test_creates_a_comment_as_the_bot(github: FakeGitHub, client: GitHubComments) -> None:
    made = client.create("text")
    assert (made.author, made.body) == (BOT, "text")
    assert [comment.comment_id for comment in github.comments] == [made.comment_id]


def test_replaces_the_text_of_a_comment(github: FakeGitHub, client: GitHubComments) -> None:
    made = client.create("old")
    assert client.update(made.comment_id, "new").url == made.url
    assert [comment.body for comment in github.comments] == ["new"]


def test_lists_every_page_in_order(github: FakeGitHub, client: GitHubComments) -> None:
    for index in range(205):
        github.add(f"text {index}")
    assert [one.body for one in client.listed()] == [f"text {index}" for index in range(205)]
    assert github.methods() == ["GET"] * 3


def test_lists_a_comment_of_a_deleted_account(github: FakeGitHub, client: GitHubComments) -> None:
    github.add("text", author=None)
    assert next(iter(client.listed())).author == ""


def test_an_enterprise_prefix_is_kept() -> None:
    with FakeGitHub(prefix="/api/v3") as github, connect(github) as client:
        for index in range(101):
            github.add(str(index))
        assert len(list(client.listed())) == 101
        assert {one.path.split("/repos")[0] for one in github.requests} == {"/api/v3"}


def test_sends_the_headers_that_the_api_wants(github: FakeGitHub, client: GitHubComments) -> None:
    list(client.listed())
    headers = github.requests[0].headers
    assert headers["accept"] == "application/vnd.github+json, application/json;q=0.9"
    assert headers["x-github-api-version"] == "2022-11-28"
    assert headers["authorization"] == f"Bearer {github.token}"


@pytest.mark.parametrize(
    ("failure", "message", "hint"),
    [
        (Failure.UNAUTHORISED, "the token was refused (401)", "Pass the token of this job"),
        (
            Failure.REFUSED,
            "the token may not comment on this pull request (403)",
            "Give the job the permission `pull-requests: write`",
        ),
        (
            Failure.NOT_FOUND,
            "the pull request or its comment was not found (404)",
            "Check the repository's name",
        ),
        (Failure.GONE, "comments are disabled or locked here (410)", "Unlock"),
        (Failure.LOCKED, "comments are disabled or locked here (403)", "Unlock"),
        (Failure.TEAPOT, "GitHub refused the request (418)", "The job summary"),
    ],
)
def test_a_refusal_is_explained_and_not_repeated(
    github: FakeGitHub, client: GitHubComments, failure: Failure, message: str, hint: str
) -> None:
    github.fail_next("POST", failure)
    with pytest.raises(PublishError) as caught:
        client.create("text")
    assert caught.value.message == message
    assert hint in caught.value.hint
    assert github.methods() == ["POST"]


def test_what_github_says_is_passed_on(github: FakeGitHub, client: GitHubComments) -> None:
    github.fail_next("POST", Failure.REFUSED)
    with pytest.raises(PublishError) as caught:
        client.create("text")
    assert caught.value.details == ("Resource not accessible by integration",)


@pytest.mark.parametrize("failure", [Failure.TEAPOT, Failure.TEAPOT_LIST, Failure.TEAPOT_TEXT])
def test_an_answer_without_a_message_adds_nothing(
    github: FakeGitHub, client: GitHubComments, failure: Failure
) -> None:
    github.fail_next("POST", failure)
    with pytest.raises(PublishError) as caught:
        client.create("text")
    assert caught.value.details == ()


def test_a_text_over_the_limit_is_refused(client: GitHubComments) -> None:
    with pytest.raises(PublishError, match="refused as invalid or too long"):
        client.create("x" * 65_537)


def test_reading_and_replacing_are_retried(github: FakeGitHub, client: GitHubComments) -> None:
    made = client.create("old")
    github.fail_next("GET", Failure.SERVER_ERROR, Failure.RATE_LIMITED, Failure.CUT)
    github.fail_next("PATCH", Failure.SERVER_ERROR)
    assert len(list(client.listed())) == 1
    assert client.update(made.comment_id, "new").body == "new"


def test_a_server_that_stays_broken_is_told(github: FakeGitHub, client: GitHubComments) -> None:
    github.fail_next("GET", *[Failure.SERVER_ERROR] * 4)
    with pytest.raises(PublishError, match=r"GitHub reported a server error \(500\)"):
        list(client.listed())


def test_a_failed_creation_is_repeated_after_a_look(
    github: FakeGitHub, client: GitHubComments
) -> None:
    github.fail_next("POST", Failure.SERVER_ERROR, Failure.CUT)
    client.create("text")
    assert len(github.comments) == 1
    assert github.methods() == ["POST", "GET", "POST", "GET", "POST"]


@pytest.mark.parametrize("failure", [Failure.CUT_AFTER_STORING, Failure.BAD_GATEWAY_AFTER_STORING])
def test_a_creation_whose_answer_got_lost_is_not_repeated(
    github: FakeGitHub, client: GitHubComments, failure: Failure
) -> None:
    github.fail_next("POST", failure)
    assert client.create("text").comment_id == github.comments[0].comment_id
    assert len(github.comments) == 1


def test_an_older_comment_with_the_same_text_is_not_taken_for_ours(
    github: FakeGitHub, client: GitHubComments
) -> None:
    older = github.add("text")
    list(client.listed())
    github.fail_next("POST", Failure.CUT)
    assert client.create("text").comment_id != older.comment_id


def test_creation_gives_up_after_three_tries(github: FakeGitHub, client: GitHubComments) -> None:
    github.fail_next("POST", *[Failure.CUT] * 3)
    with pytest.raises(PublishError, match=r"could not be reached \(ConnectionError\)"):
        client.create("text")
    assert github.methods().count("POST") == 3


def test_a_redirect_on_the_same_host_is_followed(
    github: FakeGitHub, client: GitHubComments
) -> None:
    github.fail_next("POST", Failure.MOVED_HERE)
    assert client.create("text").body == "text"


def test_a_redirect_to_another_host_is_not(github: FakeGitHub, client: GitHubComments) -> None:
    github.fail_next("GET", Failure.MOVED_TO_ANOTHER_HOST)
    with pytest.raises(PublishError, match="to another host; the redirect was not followed"):
        list(client.listed())


def test_redirects_without_end_are_left(github: FakeGitHub, client: GitHubComments) -> None:
    github.fail_next("GET", *[Failure.MOVED_HERE] * 6)
    with pytest.raises(PublishError, match="redirected the request in a loop"):
        list(client.listed())


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_answer_that_is_not_the_apis_is_told(
    github: FakeGitHub, client: GitHubComments, method: str
) -> None:
    github.fail_next(method, Failure.NOT_JSON)
    with pytest.raises(PublishError, match="does not come from GitHub's API"):
        _ = list(client.listed()) if method == "GET" else client.create("text")


def test_a_list_that_leads_back_is_left(github: FakeGitHub, client: GitHubComments) -> None:
    github.fail_next("GET", Failure.SAME_PAGE_AGAIN)
    with pytest.raises(PublishError, match="links back to a page already read"):
        list(client.listed())


def test_whoever_stops_reading_costs_no_further_page(
    github: FakeGitHub, client: GitHubComments
) -> None:
    for index in range(205):
        github.add(f"text {index}")
    assert next(iter(client.listed())).body == "text 0"
    assert github.methods() == ["GET"]


def test_after_a_lost_answer_only_what_is_new_is_read_again(
    github: FakeGitHub, client: GitHubComments
) -> None:
    for index in range(205):
        github.add(f"text {index}").updated_at -= 3600
    list(client.listed())
    github.fail_next("POST", Failure.CUT_AFTER_STORING)
    client.create("ours")
    assert github.methods() == ["GET", "GET", "GET", "POST", "GET"]
    assert len(github.comments) == 206


def test_a_jobs_own_token_writes_as_the_bot(github: FakeGitHub, client: GitHubComments) -> None:
    assert client.author() == BOT
    assert github.requests == ()


def test_a_persons_token_writes_as_that_person() -> None:
    with FakeGitHub(token="ghp_x", person="release-robot") as github, connect(github) as client:
        assert client.author() == "release-robot"
        assert client.create("text").author == "release-robot"


def test_a_token_that_may_not_ask_for_its_name_is_taken_for_the_bots() -> None:
    with FakeGitHub(token="other") as github, connect(github) as client:
        assert client.author() == BOT
