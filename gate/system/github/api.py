"""One request to GitHub's REST API, and its status codes as messages with a hint.

Status codes: GitHub REST API, version 2022-11-28, "Troubleshooting the REST API".

Proxies (`HTTPS_PROXY`, `NO_PROXY`) and certificates (`REQUESTS_CA_BUNDLE`) come from the usual
environment variables, as requests reads them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Self, TypeVar
from urllib.parse import urljoin, urlsplit

import requests
from pydantic import TypeAdapter, ValidationError
from requests.adapters import HTTPAdapter
from urllib3 import BaseHTTPResponse, Retry
from urllib3.exceptions import HTTPError, ReadTimeoutError

from gate.errors import PublishError
from gate.system.http import (
    BodyLimits,
    GitHubRetry,
    LimitedError,
    RetryPolicy,
    bounded_pieces,
    details_of,
    limit_seconds,
    tells_limit,
)

MESSAGE_LIMIT: Final = 200


@dataclass(frozen=True, slots=True)
class Words:
    """What is the matter, and what a person can do about it."""

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
            "Check that no rule of the repository protects the branch repro-gate-history.",
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


class UnansweredError(PublishError):
    """A request that may or may not have been carried out."""


class RefusedError(PublishError):
    """A request that was not carried out; `status` is GitHub's status code."""

    def __init__(self, words: Words, *, status: int, told: str) -> None:
        super().__init__(f"{words.message} ({status})", hint=words.hint, details=details_of(told))
        self.status = status


def refusal(status: int, told: str, refusals: Refusals) -> RefusedError | UnansweredError:
    """An answer of 400 or above in words; `told` is what GitHub says about it."""
    if status >= requests.codes.internal_server_error:
        return UnansweredError(
            f"GitHub reported a server error ({status})",
            hint="Run the job again.",
            details=details_of(told),
        )
    words = refusals.get(status, _OTHER)
    # a locked conversation is a 403 too, and no permission helps there
    if status == requests.codes.forbidden and "locked" in told.lower():
        words = _LOCKED
    return RefusedError(words, status=status, told=told)


def too_slow(origin: str, seconds: float) -> UnansweredError:
    """An answer that did not come, or not whole, within a time."""
    return UnansweredError(
        f"{origin} did not answer within {seconds:g} s", hint="Run the job again."
    )


def unreached(error: requests.RequestException, origin: str, seconds: float) -> UnansweredError:
    """A connection that failed or was silent; the exception's own text stays out of the message.

    It may quote headers.
    """
    # of several tries, requests does not tell the last one's silence as a timeout
    last = getattr(error.args[0], "reason", None) if error.args else None
    if isinstance(error, requests.Timeout) or isinstance(last, ReadTimeoutError):
        return too_slow(origin, seconds)
    if isinstance(error, requests.exceptions.SSLError):
        return UnansweredError(
            f"the certificate of {origin} was not accepted",
            hint="Set REQUESTS_CA_BUNDLE to the file with your certificate authority, at a path "
            "that the action's container can read.",
        )
    if isinstance(error, requests.exceptions.ProxyError):
        return UnansweredError(
            f"the proxy refused the request to {origin}",
            hint="Check HTTPS_PROXY; list the hosts that need no proxy in NO_PROXY.",
        )
    return UnansweredError(
        f"{origin} could not be reached ({type(error).__name__})",
        hint="Check the network, the proxy and its certificates; then run the job again.",
    )


def told(content: bytes, secret: str) -> str:
    """The message in an answer as one printable line without the token; empty without one."""
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        return ""
    message = answer.get("message") if isinstance(answer, dict) else None
    if not isinstance(message, str):
        return ""
    line = "".join(character for character in message if character.isprintable())
    # replaced before it is cut: half a token at the end would not be found
    return line.replace(secret, "***")[:MESSAGE_LIMIT]


API_VERSION: Final = "2022-11-28"
# the second type is for servers that know the API but not its media type
ACCEPT: Final = "application/vnd.github+json, application/json;q=0.9"
# twice the same, GET reads the same and PATCH leaves the same text; POST would write a second one
REPEATABLE_METHODS: Final = frozenset({"GET", "PATCH"})
MAX_REDIRECTS: Final = 3
REDIRECTS: Final = frozenset({301, 302, 307, 308})
# a page of 100 comments of 65,536 characters, four bytes each, is 26 MB
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
PIECE_BYTES: Final = 256 * 1024
# neither part may be a step up in the address
_REPOSITORY = re.compile(r"[A-Za-z0-9_-]+/(?!\.\.?\Z)[A-Za-z0-9._-]+")
_TOKEN = re.compile(r"[!-~]+")
Body = Mapping[str, object]
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """An answer that arrived whole; `next_url` leads to the next page, empty on the last."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    next_url: str

    def read_as(self, kind: TypeAdapter[_T]) -> _T:
        """The content as what the API promises; `PublishError` when it is something else."""
        try:
            return kind.validate_json(self.content)
        except ValidationError as error:
            raise PublishError(
                "the answer does not come from GitHub's API",
                hint="Check that GITHUB_API_URL is the address of the API, not of the web pages.",
            ) from error


class _Bearer(requests.auth.AuthBase):
    """Sets the token on each request; being an explicit auth, it also keeps .netrc out."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class GitHubApi:
    """Requests about one repository, written as owner/name; a context manager.

    Every failure is a `PublishError` without the token in it. A request with one of the
    `repeatable` methods is sent again after a fault, and any after a rate limit, which kept it from
    being carried out.
    """

    def __init__(
        self,
        api_url: str,
        repository: str,
        token: str,
        policy: RetryPolicy,
        refusals: Refusals,
        repeatable: frozenset[str] = REPEATABLE_METHODS,
    ) -> None:
        self.base = api_url.rstrip("/")
        parts = urlsplit(self.base)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise PublishError(
                f"{api_url[:MESSAGE_LIMIT]!r} is not the address of an API",
                hint="GITHUB_API_URL is https://api.github.com, or that of your own server.",
            )
        # a line end in it would begin a header of its own (CWE-113)
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
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._token = token
        self._refusals = refusals
        self._repeatable = repeatable
        self._policy = policy
        self._next_write = policy.monotonic()
        self._adapter = HTTPAdapter()
        self._session = requests.Session()
        self._session.auth = _Bearer(token)
        self._session.headers.update(
            {"Accept": ACCEPT, "X-GitHub-Api-Version": API_VERSION, "User-Agent": "repro-gate"}
        )
        for scheme in ("https://", "http://"):
            self._session.mount(scheme, self._adapter)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._session.close()

    def send(self, method: str, url: str, body: Body | None = None) -> Response:
        """Send a request, wait where GitHub asks for it, and follow redirects on the same host.

        Raises `UnansweredError` when nobody can know whether it was carried out, and another
        `PublishError` when it was not.
        """
        self._keep_writes_apart(method)
        retry = self._retries()
        # followed by hand: each address is checked before the token goes there
        for _ in range(MAX_REDIRECTS + 1):
            answer = self._answer(method, self._on_same_host(url), body, retry)
            if answer.status not in REDIRECTS:
                return answer
            url = answer.headers.get("Location", "")
        raise PublishError("GitHub redirected the request in a loop")

    def redirect_of(self, url: str) -> str:
        """Where GitHub sends whoever asks for something that lies elsewhere; it is not followed.

        The token goes to GitHub alone. Raises `PublishError` when the answer is no redirect.
        """
        answer = self._answer("GET", self._on_same_host(url), None, self._retries())
        if answer.status not in REDIRECTS:
            raise PublishError(
                "GitHub did not say where the file lies",
                hint="Check that GITHUB_API_URL is the address of the API.",
            )
        return urljoin(url, answer.headers.get("Location", ""))

    def _retries(self) -> GitHubRetry:
        return GitHubRetry(
            self._policy,
            self._limit,
            self._policy.monotonic() + self._policy.longest_wait_seconds,
            allowed_methods=self._repeatable,
        )

    def _on_same_host(self, url: str) -> str:
        """The address in full; `PublishError` when it leads to a host that gets no token."""
        if url.startswith("/") and not url.startswith("//"):
            return self._origin + url
        # with the slash: https://api.github.com.example.org begins like the real one
        if not url.startswith(self._origin + "/"):
            raise PublishError(
                "GitHub redirected the request to another host; the redirect was not followed",
                hint="Check GITHUB_API_URL and the proxy.",
            )
        return url

    def _keep_writes_apart(self, method: str) -> None:
        """GitHub takes many writes at once for abuse."""
        if method == "GET":
            return
        rest = self._next_write - self._policy.monotonic()
        if rest > 0:
            self._policy.sleep(rest)
        self._next_write = self._policy.monotonic() + self._policy.pause_seconds

    def _answer(self, method: str, url: str, body: Body | None, retry: Retry) -> Response:
        seconds = self._policy.timeout_seconds
        try:
            while True:
                self._adapter.max_retries = retry
                with self._session.request(
                    method, url, json=body, timeout=seconds, allow_redirects=False, stream=True
                ) as response:
                    try:
                        return self._whole(response)
                    except HTTPError as broken_off:
                        # urllib3's own retries end where the text of an answer begins
                        used = response.raw.retries or retry
                        retry = used.increment(method, url, error=broken_off)
                retry.sleep()
        except HTTPError as error:
            raise UnansweredError(
                f"the answer of {self._origin} was cut off", hint="Run the job again."
            ) from error
        except requests.RequestException as error:
            raise unreached(error, self._origin, seconds) from error

    def _whole(self, response: requests.Response) -> Response:
        status, content = response.status_code, self._content(response.raw)
        if status >= requests.codes.bad_request:
            raise refusal(status, told(content, self._token), self._refusals)
        next_url = response.links.get("next", {}).get("url", "")
        return Response(status=status, headers=response.headers, content=content, next_url=next_url)

    def _limit(self, response: BaseHTTPResponse) -> LimitedError:
        """The limit that an answer tells of; `RefusedError` when it tells of none."""
        message = told(self._content(response), self._token)
        if not tells_limit(response, message):
            raise refusal(response.status, message, self._refusals)
        seconds = limit_seconds(response.headers, self._policy.now())
        return LimitedError(seconds, status=response.status, told=message)

    def _content(self, response: BaseHTTPResponse) -> bytes:
        """The body, up to a size and within a time, however slowly it comes."""
        limits = BodyLimits(
            piece_bytes=PIECE_BYTES,
            max_bytes=MAX_ANSWER_BYTES,
            seconds=self._policy.answer_seconds,
            monotonic=self._policy.monotonic,
            too_large=lambda: PublishError(
                f"GitHub's answer is larger than {MAX_ANSWER_BYTES // 1024**2} MiB",
                hint="Check that GITHUB_API_URL is the address of the API.",
            ),
            too_slow=lambda: too_slow(self._origin, self._policy.answer_seconds),
        )
        return b"".join(bounded_pieces(response, limits))
