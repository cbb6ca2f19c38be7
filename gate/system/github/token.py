"""What a token may do, asked without doing it.

GitHub's REST API (version 2022-11-28) answers 403 where a permission is missing. No answer lists
what a job's token may do, so a comment is asked for whose required text is missing: a server that
lets the token comment refuses that with 422, and cannot write it. A branch is asked for without its
name in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping

from gate.errors import PublishError
from gate.system.github.api import GitHubApi
from gate.system.github.pull_request_records import TokenSeen
from gate.system.github.refusals import RefusedError
from gate.system.retry import RetryPolicy

# somebody looks on: what cannot be told now is a problem of its own
AT_ONCE = RetryPolicy(longest_wait_seconds=0.0)


def probe_token(
    api_url: str,
    repository: str,
    token: str,
    *,
    number: int | None = None,
    contents: bool = False,
) -> TokenSeen:
    """Ask for the repository and, with the number of a pull request, for an impossible comment.

    With `contents` also for an impossible branch.
    """
    try:
        with GitHubApi(api_url, repository, token, AT_ONCE, {}) as api:
            read = _status(api, "GET", api.repository_url, None)
            comments = f"{api.repository_url}/issues/{number}/comments"
            branches = f"{api.repository_url}/git/refs"
            return TokenSeen(
                repository_status=read,
                comment_status=0 if number is None else _status(api, "POST", comments, {}),
                contents_status=_status(api, "POST", branches, {}) if contents else 0,
            )
    except PublishError as error:
        return TokenSeen(problem=error.message, fix=error.hint)


def _status(api: GitHubApi, method: str, url: str, body: Mapping[str, str] | None) -> int:
    try:
        return api.send(method, url, body).status
    except RefusedError as error:
        return error.status
