"""One request to GitHub's REST API: repeated when harmless, kept on one host, faults explained.

Proxies (`HTTPS_PROXY`, `NO_PROXY`) and certificates (`REQUESTS_CA_BUNDLE`) come from the usual
environment variables, as requests reads them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError

from gate.edges.github_refusals import (
    MESSAGE_LIMIT,
    Refusals,
    UnansweredError,
    limited,
    refusal,
    server_fault,
    told,
    unreached,
)
from gate.edges.github_waiting import (
    LONGEST_WAIT_SECONDS,
    RETRIES,
    Pace,
    Patience,
    is_limited,
    limit_seconds,
)
from gate.errors import PublishError

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
_TOKEN = re.compile(r"[!-~]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """An answer that arrived whole; `next_url` leads to the next page, empty on the last."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    next_url: str


class _Bearer(requests.auth.AuthBase):
    """Sets the token on each request; being an explicit auth, it also keeps .netrc out."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class GitHubApi:
    """Requests to one API base; every failure is a `PublishError` without the token in it."""

    def __init__(self, api_url: str, token: str, patience: Patience, refusals: Refusals) -> None:
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
        self._refusals = refusals
        self._patience = patience
        self._pace = Pace(patience)
        self._session = _session(token)

    def close(self) -> None:
        """Close all connections."""
        self._session.close()

    def send(
        self, method: str, url: str, body: Mapping[str, str] | None, *, repeatable: bool = False
    ) -> Answer:
        """Send a request, wait where GitHub asks for it, and follow redirects on the same host.

        GET and PATCH are repeated, and with `repeatable` any method; every method is where a rate
        limit kept it from being carried out. Raises `UnansweredError` when nobody can know whether
        it was carried out, and `PublishError` when it was refused.
        """
        for _ in range(MAX_REDIRECTS + 1):
            answer = self._patiently(
                method,
                self.on_same_host(url),
                body,
                repeatable=repeatable or method in REPEATABLE_METHODS,
            )
            if answer.status not in REDIRECTS:
                return answer
            url = answer.headers.get("Location", "")
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

    def _patiently(
        self, method: str, url: str, body: Mapping[str, str] | None, *, repeatable: bool
    ) -> Answer:
        """The answer to a request that is sent up to four times; all waits together are bounded."""
        left, tries = LONGEST_WAIT_SECONDS, 0
        while True:
            last = tries == RETRIES
            try:
                answer = self._once(method, url, body)
                wait = self._limit(answer, left, last=last)
                if wait is None:
                    self._check(answer)
                    return answer
            except UnansweredError:
                wait = self._patience.backoff(tries)
                if last or not repeatable:
                    raise
            self._patience.sleep(wait)
            left -= wait
            tries += 1

    def _limit(self, answer: Answer, left: float, *, last: bool) -> float | None:
        """Seconds to wait for a rate limit, None without one; `PublishError` when too long."""
        message = told(answer.content, self._token)
        if not is_limited(answer.status, answer.headers, message):
            return None
        wait = limit_seconds(answer.headers, self._patience.now())
        # asking again before the time is over counts as abuse: rather not at all
        if last or wait > left:
            raise limited(answer.status, message, wait)
        return wait

    def _once(self, method: str, url: str, body: Mapping[str, str] | None) -> Answer:
        self._pace.before(method)
        try:
            with self._session.request(
                method,
                url,
                json=body,
                timeout=self._patience.timeout_seconds,
                allow_redirects=False,
                stream=True,
            ) as response:
                return Answer(
                    status=response.status_code,
                    headers=response.headers,
                    content=self._content(response),
                    next_url=response.links.get("next", {}).get("url", ""),
                )
        except requests.Timeout as error:
            raise self._too_slow(self._patience.timeout_seconds) from error
        except requests.RequestException as error:
            raise unreached(error, self._origin) from error

    def _content(self, response: requests.Response) -> bytes:
        """The body, up to a size and within a time, however slowly it comes."""
        end = self._patience.monotonic() + self._patience.answer_seconds
        content = bytearray()
        try:
            while piece := response.raw.read1(PIECE_BYTES, decode_content=True):
                content += piece
                if len(content) > MAX_ANSWER_BYTES:
                    raise PublishError(
                        f"GitHub's answer is larger than {MAX_ANSWER_BYTES // 1024**2} MiB",
                        hint="Check that GITHUB_API_URL is the address of the API.",
                    )
                if self._patience.monotonic() > end:
                    raise self._too_slow(self._patience.answer_seconds)
        except HTTPError as error:
            raise UnansweredError(
                f"the answer of {self._origin} broke off", hint="Run the job again."
            ) from error
        return bytes(content)

    def _too_slow(self, seconds: float) -> UnansweredError:
        return UnansweredError(
            f"{self._origin} did not answer within {seconds:g} s", hint="Run the job again."
        )

    def _check(self, answer: Answer) -> None:
        if answer.status < requests.codes.bad_request:
            return
        message = told(answer.content, self._token)
        if answer.status >= requests.codes.internal_server_error:
            raise server_fault(answer.status, message)
        raise refusal(answer.status, message, self._refusals)


def _session(token: str) -> requests.Session:
    session = requests.Session()
    session.auth = _Bearer(token)
    session.headers.update(
        {"Accept": ACCEPT, "X-GitHub-Api-Version": API_VERSION, "User-Agent": "repro-gate"}
    )
    for scheme in ("https://", "http://"):
        # what is repeated, and after how long, is decided here and not below
        session.mount(scheme, HTTPAdapter(max_retries=0))
    return session
