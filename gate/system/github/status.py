"""A commit status on GitHub: the verdict in one line beside a commit.

Endpoint: GitHub REST API, version 2022-11-28, "Commit statuses". A status is set again under the
same context, and the newest counts: a repeated request does no harm.
"""

from __future__ import annotations

from gate.system.github.api import GitHubApi
from gate.system.github.pull_request_records import CommitStatus
from gate.system.github.refusals import STATUS_REFUSALS
from gate.system.retry import GITHUB_POLICY, RetryPolicy

# GitHub refuses a longer description
DESCRIPTION_LIMIT = 140


def set_commit_status(
    status: CommitStatus,
    *,
    api_url: str,
    repository: str,
    token: str,
    policy: RetryPolicy = GITHUB_POLICY,
) -> None:
    """Set a status on the commit that it names; every failure is a `PublishError`."""
    body = {
        "state": status.state.value,
        "context": status.context,
        "description": status.description[:DESCRIPTION_LIMIT],
        # an empty address is refused, none is not
        **({"target_url": status.target_url} if status.target_url else {}),
    }
    # the newest status of a context counts, so setting it twice is the same as once
    repeatable = frozenset({"POST"})
    with GitHubApi(api_url, repository, token, policy, STATUS_REFUSALS, repeatable) as api:
        api.send("POST", f"{api.repository_url}/statuses/{status.commit}", body)
