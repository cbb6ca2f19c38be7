"""What a token may do, asked without doing it.

GitHub's REST API (version 2022-11-28) answers 403 where a permission is missing. No answer lists
what a job's token may do, so a comment is asked for whose required text is missing: a server that
lets the token comment refuses that with 422, and cannot write it.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import requests

from gate.records.doctor import TokenSeen

API_VERSION = "2022-11-28"
ACCEPT = "application/vnd.github+json, application/json;q=0.9"
ANSWER_SECONDS = 20.0
_TOKEN = re.compile(r"[!-~]+")


def probe_token(
    api_url: str,
    repository: str,
    token: str,
    *,
    number: int | None = None,
    answer_seconds: float = ANSWER_SECONDS,
) -> TokenSeen:
    """Ask for the repository and, with the number of a pull request, for an impossible comment."""
    base = f"{api_url.rstrip('/')}/repos/{repository}"
    if urlsplit(base).scheme not in {"http", "https"}:
        return TokenSeen(problem="GITHUB_API_URL is no address of an API")
    if not _TOKEN.fullmatch(token):
        return TokenSeen(problem="the token holds a character that no token has")
    with requests.Session() as session:
        # as an auth, it also keeps .netrc out
        session.auth = lambda request: _with_token(request, token)
        session.headers.update({"Accept": ACCEPT, "X-GitHub-Api-Version": API_VERSION})
        try:
            read = _status(session, "GET", base, answer_seconds)
            if number is None:
                return TokenSeen(repository_status=read)
            comments = f"{base}/issues/{number}/comments"
            return TokenSeen(
                repository_status=read,
                comment_status=_status(session, "POST", comments, answer_seconds),
            )
        except requests.RequestException as error:
            # not the exception's own text: it may quote headers
            return TokenSeen(problem=f"the API could not be reached ({type(error).__name__})")


def _with_token(request: requests.PreparedRequest, token: str) -> requests.PreparedRequest:
    request.headers["Authorization"] = f"Bearer {token}"
    return request


def _status(session: requests.Session, method: str, url: str, seconds: float) -> int:
    """The status alone: the body is not read, and a redirect gets no token."""
    body: dict[str, str] | None = {} if method == "POST" else None
    with session.request(
        method, url, json=body, timeout=seconds, allow_redirects=False, stream=True
    ) as response:
        return response.status_code
