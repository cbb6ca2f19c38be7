"""A commit status on GitHub: the verdict in one line beside a commit.

Endpoint: GitHub REST API, version 2022-11-28, "Commit statuses". A status is set again under the
same context, and the newest counts: a repeated request does no harm.
"""

from __future__ import annotations

from gate.edges.github import PATIENCE, repository_api
from gate.edges.github_refusals import STATUS_REFUSALS
from gate.edges.github_waiting import Patience
from gate.records.report import CommitStatus

# GitHub refuses a longer description
DESCRIPTION_LIMIT = 140


def set_commit_status(
    status: CommitStatus,
    *,
    api_url: str,
    repository: str,
    token: str,
    patience: Patience = PATIENCE,
) -> None:
    """Set a status on the commit that it names; every failure is a `PublishError`."""
    api = repository_api(api_url, repository, token, patience, STATUS_REFUSALS)
    body = {
        "state": status.state.value,
        "context": status.context,
        "description": status.description[:DESCRIPTION_LIMIT],
        # an empty address is refused, none is not
        **({"target_url": status.target_url} if status.target_url else {}),
    }
    url = f"{api.base}/repos/{repository}/statuses/{status.commit}"
    try:
        api.send("POST", url, body, repeatable=True)
    finally:
        api.close()
