"""The open pull requests of a branch, for an event that does not name its own.

Endpoint: GitHub REST API, version 2022-11-28, "List pull requests", with `head=owner:branch`.
"""

from __future__ import annotations

from urllib.parse import urlencode

from pydantic import BaseModel, TypeAdapter

from gate.errors import PublishError
from gate.system.github.api import GitHubApi
from gate.system.github.pull_request_records import PullRequest, RunOrigin
from gate.system.github.refusals import PULL_REFUSALS
from gate.system.retry import GITHUB_POLICY, RetryPolicy


class _Repository(BaseModel):
    full_name: str


class _Side(BaseModel):
    """A branch and its commit; a deleted fork leaves no repository."""

    ref: str
    sha: str
    repo: _Repository | None = None


class _Pull(BaseModel):
    number: int
    head: _Side
    base: _Side


_PULLS = TypeAdapter(tuple[_Pull, ...])


def find_pull_request(
    *,
    api_url: str,
    repository: str,
    token: str,
    origin: RunOrigin,
    policy: RetryPolicy = GITHUB_POLICY,
) -> PullRequest:
    """The one open pull request whose head is the commit that a workflow ran on.

    Raises `PublishError` when there is none (it moved on, or was closed) or more than one.
    """
    asked = urlencode(
        {"state": "open", "head": f"{origin.head_owner}:{origin.head_branch}", "per_page": "100"}
    )
    with GitHubApi(api_url, repository, token, policy, PULL_REFUSALS) as api:
        pulls = api.send("GET", f"{api.repository_url}/pulls?{asked}").read_as(_PULLS)
    matching = [
        pull
        for pull in pulls
        # the branch may have moved on since: a verdict belongs to the commit that was trained
        if pull.head.sha == origin.head_sha
        and pull.head.repo is not None
        and pull.head.repo.full_name == origin.head_repository
        and pull.base.repo is not None
        and pull.base.repo.full_name == repository
    ]
    if len(matching) != 1:
        raise PublishError(
            f"{len(matching) or 'no'} open pull request(s) have the head {origin.head_sha[:12]}",
            hint="It was pushed to again or closed meanwhile: the newer push has its own run. "
            "Two pull requests from one branch cannot be distinguished here.",
        )
    (found,) = matching
    return PullRequest(
        number=found.number,
        head_sha=found.head.sha,
        base_sha=found.base.sha,
        base_branch=found.base.ref,
        from_fork=origin.head_repository != repository,
    )
