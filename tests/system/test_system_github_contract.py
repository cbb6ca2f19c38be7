"""Each request of the client against GitHub's own OpenAPI description: `make api-check`."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import requests
from fake_github import FakeGitHub
from github_client import AT_ONCE, connect
from github_failures import Failure
from github_records import SeenRequest

from gate.errors import PublishError
from gate.system.github.api import ACCEPT
from gate.system.github.pull_requests import (
    GitHubComments,
    find_pull_request,
    probe_token,
    set_commit_status,
)
from gate.system.github.records import CommitStatus, PullRequest, RunOrigin, StatusState, TokenSeen

DESCRIPTION = os.environ.get("GITHUB_OPENAPI", "")
PRISM = os.environ.get("PRISM_URL", "")
SERVER = "https://api.github.com"
COMMIT = "a" * 40
pytestmark = pytest.mark.skipif(
    not DESCRIPTION or not PRISM, reason="`make api-check` gets GitHub's description and Prism"
)


@pytest.fixture(scope="module")
def description() -> Any:  # noqa: ANN401 - openapi-core comes with `make api-check` only
    core = pytest.importorskip("openapi_core")
    return core.OpenAPI.from_file_path(DESCRIPTION)


@pytest.fixture(scope="module")
def requests_sent() -> tuple[SeenRequest, ...]:
    """Every kind of request that the client knows, as a server received it."""
    with FakeGitHub() as server, connect(server) as client:
        for index in range(101):
            server.add(str(index))
        list(client.listed())
        server.fail_next("POST", Failure.CUT_AFTER_STORING)
        made = client.create("text")
        client.update(made.comment_id, "other text")
        _status(server.api_url, server.token)
        server.open_pull(number=7, head=COMMIT, base="b" * 40)
        assert _find(server.api_url, server.token).number == 7
        of_the_job = server.requests
    with FakeGitHub(token="ghp_x", person="somebody") as server, connect(server) as client:
        client.author()
        return (*of_the_job, *server.requests)


def _find(api_url: str, token: str) -> PullRequest:
    origin = RunOrigin(
        head_sha=COMMIT, head_repository="o/model", head_owner="o", head_branch="fix#1&x=y"
    )
    return find_pull_request(
        api_url=api_url, repository="o/model", token=token, origin=origin, policy=AT_ONCE
    )


def _status(api_url: str, token: str) -> None:
    status = CommitStatus(
        commit=COMMIT,
        state=StatusState.SUCCESS,
        context="repro-gate",
        description="passed: reproduced",
        target_url="https://github.example/run",
    )
    set_commit_status(status, api_url=api_url, repository="org/repo", token=token, policy=AT_ONCE)


class _Request:
    """A request that was received, for openapi-core, as if it had gone to github.com."""

    def __init__(self, seen: SeenRequest) -> None:
        datastructures = pytest.importorskip("werkzeug.datastructures")
        parts = urlsplit(seen.path)
        self.host_url, self.path, self.method = SERVER, parts.path, seen.method.lower()
        self.body = seen.body or None
        self.content_type = seen.headers.get("content-type", "")
        self.parameters = pytest.importorskip("openapi_core.datatypes").RequestParameters(
            query=datastructures.ImmutableMultiDict(parse_qsl(parts.query)),
            header=datastructures.Headers(seen.headers),
        )


def test_every_request_is_one_that_github_describes(
    description: Any,  # noqa: ANN401 - as above
    requests_sent: tuple[SeenRequest, ...],
) -> None:
    assert {request.method for request in requests_sent} == {"GET", "POST", "PATCH"}
    assert requests_sent[-1].path == "/user"
    assert any("/pulls?" in request.path for request in requests_sent)
    assert any("since=" in request.path for request in requests_sent)
    for request in requests_sent:
        description.validate_request(_Request(request))


def test_a_request_that_github_would_refuse_is_noticed(description: Any) -> None:  # noqa: ANN401
    exceptions = pytest.importorskip("openapi_core.exceptions")
    bad = SeenRequest(
        method="POST",
        path=f"/repos/o/r/statuses/{COMMIT}",
        headers={"content-type": "application/json"},
        body=b'{"state": "passed"}',
    )
    with pytest.raises(exceptions.OpenAPIError):
        description.validate_request(_Request(bad))


def test_the_answers_that_github_describes_are_understood() -> None:
    with _prism("ghs_x") as client:
        # its next page lies at api.github.com, where the client rightly does not follow
        listed = next(iter(client.listed()))
        made = client.create("text")
        assert client.update(made.comment_id, "other").comment_id
    assert listed.body
    assert made.url.startswith("https://github.com/")
    _status(PRISM, "ghs_x")
    # its example is of another repository
    with pytest.raises(PublishError, match="no open pull request"):
        _find(PRISM, "ghs_x")


def test_a_persons_name_is_read_from_githubs_own_example() -> None:
    with _prism("ghp_x") as client:
        assert client.author() == "octocat"


def test_the_probe_asks_what_github_refuses_for_its_text_alone() -> None:
    seen = probe_token(PRISM, "org/repo", "ghs_x", number=7, contents=True)
    assert seen == TokenSeen(repository_status=200, comment_status=422, contents_status=422)


def test_prism_refuses_what_github_would() -> None:
    answer = requests.post(
        f"{PRISM}/repos/o/r/statuses/{COMMIT}",
        json={"state": "passed"},
        headers={"Authorization": "Bearer ghs_x", "Accept": ACCEPT},
        timeout=60,
    )
    assert answer.status_code == 422


def _prism(token: str) -> GitHubComments:
    return GitHubComments(
        api_url=PRISM, repository="org/repo", number=7, token=token, policy=AT_ONCE
    )
