"""GitHub's REST API: its rate limits, and its status codes as messages with a hint.

Source of the status codes: GitHub REST API, version 2022-11-28, "Troubleshooting the REST API".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar
from urllib.parse import urljoin, urlsplit

import requests
from pydantic import TypeAdapter, ValidationError
from urllib3 import BaseHTTPResponse

from gate.errors import GateError, PublishError
from gate.system.http import (
    REDIRECTS,
    UNKNOWN_WAIT_SECONDS,
    Connection,
    HttpAnswer,
    HttpRequest,
    Retries,
    RetryPolicy,
    Trouble,
    UnansweredError,
    origin_of,
    seconds_of,
    trouble_of,
)
from gate.system.login import Login

MESSAGE_LIMIT: Final = 200


@dataclass(frozen=True, slots=True)
class Words:
    """A message about what is wrong, and a hint about what a person can do."""

    message: str
    hint: str


Refusals = Mapping[int, Words]

_TOKEN_REFUSED: Final = Words(
    "the token was refused", "Pass the token of this job; an older one has expired."
)
_LOCKED: Final = Words(
    "comments are disabled or locked here",
    "Unlock the conversation, or enable issues in the repository's settings.",
)
_OTHER: Final = Words("GitHub refused the request", "The job summary holds the report.")
COMMENT_REFUSALS: Final[Refusals] = MappingProxyType(
    {
        401: _TOKEN_REFUSED,
        403: Words(
            "the token may not comment on this pull request",
            "Give the job the permission `pull-requests: write`. A pull request from a fork "
            "never gets it: the job summary holds the report.",
        ),
        404: Words(
            "the pull request or its comment was not found",
            "Check the repository's name, and that the token may read it: without access "
            "GitHub answers the same.",
        ),
        410: _LOCKED,
        422: Words(
            "the comment was refused as invalid or too long",
            "GitHub takes 65,536 characters; the job summary holds the whole report.",
        ),
    }
)
PULL_REFUSALS: Final[Refusals] = MappingProxyType(
    {
        401: _TOKEN_REFUSED,
        403: Words(
            "the token may not read pull requests",
            "Give the job the permission `pull-requests: write`, or `read` without a comment.",
        ),
        404: Words(
            "the repository was not found",
            "Check that the token may read it: without access GitHub answers the same.",
        ),
    }
)
ARTIFACT_REFUSALS: Final[Refusals] = MappingProxyType(
    {
        401: Words(
            "the token was refused", "Set GH_TOKEN to a valid one: `gh auth token` prints yours."
        ),
        403: Words(
            "the token may not read artifacts",
            "It needs the permission `actions: read` for this repository.",
        ),
        404: Words(
            "the run was not found",
            "Check the number, and that the token may read the repository. A run of another "
            "repository, as of the one that was forked, is named by its URL.",
        ),
        410: Words(
            "the artifact has expired", "Run the job again; retention-days keeps artifacts longer."
        ),
    }
)
HISTORY_REFUSALS: Final[Refusals] = MappingProxyType(
    {
        401: _TOKEN_REFUSED,
        403: Words(
            "the token may not write the history",
            "Give the job on the default branch the permission `contents: write`, or leave "
            "report.history at false.",
        ),
        404: Words(
            "the repository was not found",
            "Check that the token may write to it: without access GitHub answers the same.",
        ),
        409: Words("the history was changed by another job", "The next run adds its own line."),
        422: Words(
            "the branch of the history could not be moved",
            "Let this job push to the branch repro-gate-history: a rule may protect it.",
        ),
    }
)
STATUS_REFUSALS: Final[Refusals] = MappingProxyType(
    {
        401: _TOKEN_REFUSED,
        403: Words(
            "the token may not set a commit status",
            "Give the job the permission `statuses: write`, or leave the input status at false: "
            "the job itself can be the required check.",
        ),
        404: Words(
            "the commit for the status was not found",
            "Check that the token may read the repository: without access GitHub answers the same.",
        ),
        422: Words(
            "the commit status was refused as invalid",
            "GitHub takes 1,000 statuses for a commit and a context, and only for a commit that "
            "it has.",
        ),
    }
)


def details_of(message: str) -> tuple[str, ...]:
    """Return a service's words about a refusal as the details of an error."""
    return (message,) if message else ()


class RefusedError(PublishError):
    """A request that GitHub refused and did not carry out; `status` is its status code."""

    def __init__(self, words: Words, *, status: int, message: str) -> None:
        super().__init__(
            f"{words.message} ({status})", hint=words.hint, details=details_of(message)
        )
        self.status = status


def refusal(status: int, message: str, refusals: Refusals) -> RefusedError | UnansweredError:
    """Return the error for a status of 400 or above; `message` is GitHub's own text."""
    if status >= requests.codes.internal_server_error:
        return UnansweredError(
            f"GitHub reported a server error ({status})",
            hint="Run the job again.",
            details=details_of(message),
        )
    words = refusals.get(status, _OTHER)
    # A locked conversation is also a 403, but no permission helps there.
    if status == requests.codes.forbidden and "locked" in message.lower():
        words = _LOCKED
    return RefusedError(words, status=status, message=message)


def message_of(content: bytes, secret: str) -> str:
    """Return an answer's `message` as one printable line without the secret; empty without one."""
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        return ""
    message = answer.get("message") if isinstance(answer, dict) else None
    if not isinstance(message, str):
        return ""
    line = "".join(character for character in message if character.isprintable())
    # Mask before shortening: half a token at the end would not be found.
    return line.replace(secret, "***")[:MESSAGE_LIMIT]


API_VERSION: Final = "2022-11-28"
# The second type is for servers that have the API but do not know its media type.
ACCEPT: Final = "application/vnd.github+json, application/json;q=0.9"
# Repeating a GET or a PATCH changes nothing more. A repeated POST could write a second comment.
REPEATABLE_METHODS: Final = frozenset({"GET", "PATCH"})
# A page of 100 comments with 65,536 characters of four bytes each has 26 MB.
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
LIMITED_STATUSES: Final = frozenset({requests.codes.forbidden, requests.codes.too_many_requests})
# The lookahead refuses `.` and `..` as a name, which would change the path of the address.
_REPOSITORY = re.compile(r"[A-Za-z0-9_-]+/(?!\.\.?\Z)[A-Za-z0-9._-]+")
_TOKEN = re.compile(r"[!-~]+")
Body = Mapping[str, object]
_T = TypeVar("_T")


def read_as(answer: HttpAnswer, kind: TypeAdapter[_T]) -> _T:
    """Parse the content as the API promises it; raises `PublishError` for any other content."""
    try:
        return kind.validate_json(answer.content)
    except ValidationError as error:
        raise PublishError(
            "the answer does not come from GitHub's API",
            hint="Check that GITHUB_API_URL is the address of the API, not of the web pages.",
        ) from error


def next_page(answer: HttpAnswer) -> str:
    """Return the address of a list's next page, empty on the last page (RFC 8288)."""
    links = requests.utils.parse_header_links(answer.headers.get("link", ""))
    return next((link["url"] for link in links if link.get("rel") == "next"), "")


class GitHubRetries(Retries):
    """Retries by GitHub's rules, because its answers say how long a rate limit lasts.

    A rate limit is waited for with any method, because the limited request was not carried out.
    `limit` reads the limit from an answer. If the answer states no limit, `limit` raises the error
    that it means.

    Source: GitHub REST API, version 2022-11-28, "Rate limits" and "Best practices". Obey
    `retry-after`, or else `x-ratelimit-reset`, or else wait for a minute. Wait a second between
    writes.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        ends_at: float,
        limit: Callable[[BaseHTTPResponse], LimitedError],
        **counts: Any,  # noqa: ANN401 - urllib3's own, as `new` hands them on
    ) -> None:
        super().__init__(policy, ends_at, **counts)
        self._limit = limit

    def new(self, **counts: Any) -> Self:  # noqa: ANN401 - as above
        """Return a copy with other counts; urllib3 calls this for each retry."""
        return super().new(**{"limit": self._limit} | counts)

    def is_retry(self, method: str, status_code: int, has_retry_after: bool = False) -> bool:  # noqa: ARG002, FBT001, FBT002 - urllib3's signature
        """Return whether an answer is a fault to repeat, or may be a rate limit."""
        # A 403 may be a rate limit or a refusal: `wait_after` reads the answer and decides.
        return status_code in LIMITED_STATUSES or super().is_retry(method, status_code)

    def wait_after(self, response: BaseHTTPResponse | None, left: float) -> float:
        """Return the seconds to wait; raises `LimitedError` if the limit outlasts `left`."""
        if response is None or response.status not in LIMITED_STATUSES:
            return super().wait_after(None, left)
        try:
            limited = self._limit(response)
        finally:
            response.close()
        # GitHub treats requests during a limit as abuse, so do not ask again before it ends.
        if not self.total or limited.seconds > left:
            raise limited
        return limited.seconds


def tells_limit(response: BaseHTTPResponse, message: str) -> bool:
    """Return whether a 403 or 429 is a rate limit, primary or secondary, and not a refusal."""
    return (
        response.status == requests.codes.too_many_requests
        or "Retry-After" in response.headers
        or response.headers.get("X-RateLimit-Remaining") == "0"
        or "rate limit" in message.lower()
    )


def limit_seconds(headers: Mapping[str, str], now: float) -> float:
    """Return how long a limit lasts, as far as the headers say; `now` is in seconds since 1970."""
    asked = seconds_of(headers.get("Retry-After", ""))
    if asked is not None:
        return asked
    reset = seconds_of(headers.get("X-RateLimit-Reset", ""))
    if headers.get("X-RateLimit-Remaining") == "0" and reset is not None:
        # one more second, because the reset is given in whole seconds
        return max(0.0, reset - now) + 1.0
    return UNKNOWN_WAIT_SECONDS


class LimitedError(PublishError):
    """A request that a rate limit kept from being carried out; send it again after `seconds`."""

    def __init__(self, seconds: float, *, status: int, message: str) -> None:
        super().__init__(
            f"GitHub's rate limit is used up for another {seconds:,.0f} s ({status})",
            hint="Run the job again later.",
            details=details_of(message),
        )
        self.seconds = seconds


class GitHubConnection(Connection):
    """A connection with GitHub's messages for faults; `name` is the server's address."""

    def too_slow(self, seconds: float) -> UnansweredError:
        """Return the error for an answer that did not arrive completely in time."""
        return UnansweredError(
            f"{self.name} did not answer within {seconds:g} s", hint="Run the job again."
        )

    def unreached(self, error: Exception) -> GateError:
        """Return the error for a connection that failed or was silent."""
        trouble = trouble_of(error)
        if trouble is Trouble.SILENT:
            return self.too_slow(self.policy.timeout_seconds)
        words = {
            Trouble.CUT: (f"the answer of {self.name} was cut off", "Run the job again."),
            Trouble.CERTIFICATE: (
                f"the certificate of {self.name} was not accepted",
                (
                    "Set REQUESTS_CA_BUNDLE to the file with your certificate authority, at a "
                    "path that the action's container can read."
                ),
            ),
            Trouble.PROXY: (
                f"the proxy refused the request to {self.name}",
                "Check HTTPS_PROXY; list the hosts that need no proxy in NO_PROXY.",
            ),
        }
        message, hint = words.get(
            trouble,
            (
                f"{self.name} could not be reached ({type(error).__name__})",
                "Check the network, the proxy and its certificates; then run the job again.",
            ),
        )
        return UnansweredError(message, hint=hint)


class GitHubApi(GitHubConnection):
    """Requests about one repository (owner/name); a context manager.

    Every failure is a `PublishError` without the token in it. A request with a `repeatable` method
    is sent again after a fault. After a rate limit any request is sent again, because it was not
    carried out.
    """

    followed = frozenset({"GET", "POST", "PATCH"})
    compressed = True

    def __init__(
        self,
        api_url: str,
        repository: str,
        token: str,
        policy: RetryPolicy,
        refusals: Refusals,
        repeatable: frozenset[str] = REPEATABLE_METHODS,
    ) -> None:
        super().__init__("GitHub", api_url, policy)
        self.base = api_url.rstrip("/")
        parts = urlsplit(self.base)
        self.name = f"{parts.scheme}://{parts.netloc}"
        # A line end in the token would begin another HTTP header (CWE-113).
        if not _TOKEN.fullmatch(token):
            raise PublishError(
                "the GitHub token is empty or has an invalid character",
                hint="Pass the token of this job, without quotes or line ends.",
            )
        if not _REPOSITORY.fullmatch(repository):
            raise PublishError(
                f"{repository[:100]!r} is not a repository", hint="It is written as owner/name."
            )
        self.repository_url = f"{self.base}/repos/{repository}"
        self.log_in(Login.bearer(token))
        self._token = token
        self._refusals = refusals
        self._repeatable = repeatable
        self._next_write = policy.monotonic()

    def send(self, method: str, url: str, body: Body | None = None) -> HttpAnswer:
        """Send a request, wait as GitHub asks, and follow redirects on the same host.

        Raises `UnansweredError` if it is unknown whether the request was carried out, and another
        `PublishError` if it was not.
        """
        self._keep_writes_apart(method)
        return self.ask(self._ask(method, url, body))

    def redirect_of(self, url: str) -> str:
        """Return the address to which GitHub redirects a request, without following it.

        So the token is sent to GitHub only. Raises `PublishError` if the answer is no redirect.
        """
        answer = self.ask(replace(self._ask("GET", url, None), follow=False))
        if answer.status not in REDIRECTS:
            raise PublishError(
                "GitHub did not say where the file is",
                hint="Check that GITHUB_API_URL is the address of the API.",
            )
        return urljoin(url, answer.headers.get("location", ""))

    def retries(self, ask: HttpRequest, ends_at: float) -> Retries:
        """Return retries that follow GitHub's own limits."""
        return GitHubRetries(self.policy, ends_at, self._limit, repeatable=ask.repeatable)

    def check_address(self, url: str) -> None:
        """Accept plain http too.

        An Enterprise server may have no certificate, and GITHUB_API_URL is the job's own setting.
        """
        try:
            scheme, host, _ = origin_of(url)
        except ValueError:
            scheme = host = ""
        if scheme not in {"http", "https"} or not host:
            raise PublishError(
                f"{url[:MESSAGE_LIMIT]!r} is not the address of an API",
                hint="GITHUB_API_URL is https://api.github.com, or that of your own server.",
            )

    def next_address(self, url: str, location: str) -> str:  # noqa: ARG002 - none is relative to it
        """Return the full address; raises `PublishError` for a host that must not get the token."""
        if location.startswith("/") and not location.startswith("//"):
            return self.name + location
        # Compare with the slash: https://api.github.com.example.org begins like the real address.
        if not location.startswith(self.name + "/"):
            raise PublishError(
                "GitHub redirected the request to another host; the redirect was not followed",
                hint="Check GITHUB_API_URL and the proxy.",
            )
        return location

    def judged(self, answer: HttpAnswer) -> HttpAnswer:
        """Return the answer, or raise what `refusals` say for a status of 400 or above."""
        if answer.status >= requests.codes.bad_request:
            message = message_of(answer.content, self._token)
            raise refusal(answer.status, message, self._refusals)
        return answer

    def too_large(self, max_bytes: int) -> GateError:
        """Return the error for an answer with more bytes than any page of the API."""
        return PublishError(
            f"GitHub's answer is larger than {max_bytes // 1024**2} MiB",
            hint="Check that GITHUB_API_URL is the address of the API.",
        )

    def looped(self) -> GateError:
        """Return the error for redirects that do not end."""
        return PublishError(
            "GitHub redirected the request in a loop", hint="Check GITHUB_API_URL and the proxy."
        )

    def _ask(self, method: str, url: str, body: Body | None) -> HttpRequest:
        headers = {"Accept": ACCEPT, "X-GitHub-Api-Version": API_VERSION}
        if body is not None:
            headers["Content-Type"] = "application/json"
        return HttpRequest(
            method=method,
            url=self.next_address(self.base, url),
            headers=headers,
            body=None if body is None else json.dumps(body, allow_nan=False).encode(),
            max_bytes=MAX_ANSWER_BYTES,
            repeatable=method in self._repeatable,
        )

    def _keep_writes_apart(self, method: str) -> None:
        """Wait between writes, because GitHub treats many writes at once as abuse."""
        if method == "GET":
            return
        rest = self._next_write - self.policy.monotonic()
        if rest > 0:
            self.policy.sleep(rest)
        self._next_write = self.policy.monotonic() + self.policy.pause_seconds

    def _limit(self, response: BaseHTTPResponse) -> LimitedError:
        """Return the rate limit in an answer; raises `RefusedError` if it is none."""
        pieces = self.pieces(response, MAX_ANSWER_BYTES, self.policy.answer_seconds)
        message = message_of(b"".join(pieces), self._token)
        if not tells_limit(response, message):
            raise refusal(response.status, message, self._refusals)
        seconds = limit_seconds(response.headers, self.policy.now())
        return LimitedError(seconds, status=response.status, message=message)
