"""One request to GitHub's REST API: retried when harmless, kept on one host, faults explained.

Status codes, headers and limits: GitHub REST API, version 2022-11-28.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.response import BaseHTTPResponse
from urllib3.util import Retry

from gate.errors import PublishError

API_VERSION: Final = "2022-11-28"
# the second type is for servers that know the API but not its media type
ACCEPT: Final = "application/vnd.github+json, application/json;q=0.9"
RETRIES: Final = 3
# twice the same, GET reads the same and PATCH leaves the same text; POST would write a second one
RETRIED_METHODS: Final = frozenset({"GET", "PATCH"})
TRANSIENT: Final = frozenset({429, 500, 502, 503, 504})
LONGEST_WAIT_SECONDS: Final = 60.0
MAX_REDIRECTS: Final = 3
REDIRECTS: Final = frozenset({301, 302, 307, 308})
MESSAGE_LIMIT: Final = 200
_TOKEN = re.compile(r"[!-~]+")

_PERMISSION: Final = (
    "Give the job the permission `pull-requests: write`. A pull request from a fork never gets "
    "it: the job summary holds the report."
)
_ACCESS: Final = (
    "Check the repository's name, and that the token may read it: without access GitHub answers "
    "the same."
)
_REFUSALS: Final[Mapping[int, tuple[str, str]]] = {
    401: ("the token was refused", "Pass the token of this job; an older one has expired."),
    403: (
        "the token may not comment on this pull request",
        _PERMISSION,
    ),
    404: (
        "the pull request or its comment was not found",
        _ACCESS,
    ),
    410: (
        "comments are switched off or locked here",
        "Unlock the conversation, or switch issues on in the repository's settings.",
    ),
    422: (
        "the comment was refused as invalid or too long",
        "GitHub takes 65,536 characters; the job summary holds the whole report.",
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long an answer may take, and how long to wait before the first retry."""

    timeout_seconds: float = 20.0
    backoff_seconds: float = 1.0


class UnansweredError(PublishError):
    """A request that may or may not have been carried out."""


class _BoundedRetry(Retry):
    """Obeys Retry-After, but never sleeps for longer than a job can wait."""

    def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
        wanted = super().get_retry_after(response)
        return None if wanted is None else min(wanted, LONGEST_WAIT_SECONDS)


class _Bearer(requests.auth.AuthBase):
    """Sets the token on each request; being an explicit auth, it also keeps .netrc out."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class GitHubApi:
    """Requests to one API base; every failure is a `PublishError` without the token in it.

    Proxies and certificates come from the usual environment variables.
    """

    def __init__(self, api_url: str, token: str, patience: Patience) -> None:
        self.base = api_url.rstrip("/")
        parts = urlsplit(self.base)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise PublishError(
                f"{api_url[:MESSAGE_LIMIT]!r} is no address of an API",
                hint="GITHUB_API_URL is https://api.github.com, or that of your own server.",
            )
        if not _TOKEN.fullmatch(token):
            raise PublishError(
                "the GitHub token is empty or holds a character that no token has",
                hint="Pass the token of this job, without quotes or line ends.",
            )
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._token = token
        self._timeout_seconds = patience.timeout_seconds
        self._session = _session(token, patience.backoff_seconds)

    def close(self) -> None:
        """Close all connections."""
        self._session.close()

    def send(self, method: str, url: str, body: Mapping[str, str] | None) -> requests.Response:
        """Send a request and follow redirects on the same host.

        Raises `UnansweredError` when nobody can know whether it was carried out, and
        `PublishError` when it was refused.
        """
        for _ in range(MAX_REDIRECTS + 1):
            response = self._once(method, self.on_same_host(url), body)
            if response.status_code not in REDIRECTS:
                self._check(response)
                return response
            url = response.headers.get("Location", "")
        raise PublishError("GitHub sent the request from one address to the next without end")

    def on_same_host(self, url: str) -> str:
        """The address in full; `PublishError` when it leads to a host that gets no token."""
        if url.startswith("/") and not url.startswith("//"):
            return self._origin + url
        if not url.startswith(self._origin + "/"):
            raise PublishError(
                "GitHub sent the request on to another host; it was not followed",
                hint="Check GITHUB_API_URL and the proxy.",
            )
        return url

    def _once(self, method: str, url: str, body: Mapping[str, str] | None) -> requests.Response:
        try:
            return self._session.request(
                method, url, json=body, timeout=self._timeout_seconds, allow_redirects=False
            )
        except requests.Timeout as error:
            raise UnansweredError(
                f"{self._origin} did not answer within {self._timeout_seconds:g} s",
                hint="Run the job again.",
            ) from error
        except requests.RequestException as error:
            # not the exception's own text: it may quote headers
            raise UnansweredError(
                f"{self._origin} could not be reached ({type(error).__name__})",
                hint="Check the network, the proxy and its certificates; then run the job again.",
            ) from error

    def _check(self, response: requests.Response) -> None:
        status = response.status_code
        if status < requests.codes.bad_request:
            return
        details = self._told(response)
        if status >= requests.codes.internal_server_error:
            raise UnansweredError(
                f"GitHub had a fault of its own ({status})",
                hint="Run the job again.",
                details=details,
            )
        message, hint = _refusal(response)
        raise PublishError(f"{message} ({status})", hint=hint, details=details)

    def _told(self, response: requests.Response) -> tuple[str, ...]:
        """What GitHub says about it, as one printable line."""
        try:
            answer = json.loads(response.content)
        except ValueError:
            return ()
        message = answer.get("message") if isinstance(answer, dict) else None
        if not isinstance(message, str):
            return ()
        line = "".join(character for character in message if character.isprintable())
        return (line.replace(self._token, "***")[:MESSAGE_LIMIT],)


def _refusal(response: requests.Response) -> tuple[str, str]:
    status, headers = response.status_code, response.headers
    limited = "Retry-After" in headers or headers.get("X-RateLimit-Remaining") == "0"
    if status == requests.codes.too_many_requests or (
        status == requests.codes.forbidden and limited
    ):
        return "GitHub's rate limit is used up", "Run the job again later."
    return _REFUSALS.get(
        status, ("GitHub refused the request", "The job summary holds the report.")
    )


def _session(token: str, backoff_seconds: float) -> requests.Session:
    retry = _BoundedRetry(
        total=RETRIES,
        allowed_methods=RETRIED_METHODS,
        status_forcelist=TRANSIENT,
        backoff_factor=backoff_seconds,
        raise_on_status=False,
    )
    session = requests.Session()
    session.auth = _Bearer(token)
    session.headers.update(
        {"Accept": ACCEPT, "X-GitHub-Api-Version": API_VERSION, "User-Agent": "repro-gate"}
    )
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(max_retries=retry))
    return session
