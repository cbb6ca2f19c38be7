"""Which requests to GitHub are retried, and after how long.

Limits and headers: GitHub REST API, version 2022-11-28, "Rate limits" and "Best practices": obey
`retry-after`, else `x-ratelimit-reset`, else wait for a minute; a second between writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import requests
from urllib3 import BaseHTTPResponse, Retry
from urllib3.connectionpool import ConnectionPool
from urllib3.exceptions import HTTPError, MaxRetryError

from gate.errors import PublishError

RETRIES: Final = 3
# the secondary limit, told without saying for how long
UNKNOWN_LIMIT_SECONDS: Final = 60.0
LIMITED_STATUSES: Final = frozenset({requests.codes.forbidden, requests.codes.too_many_requests})


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """How long an answer may take, and how long to wait between requests.

    `timeout_seconds` bounds silence and `answer_seconds` the whole of an answer: one that drips
    in byte by byte is never silent. Nothing is asked again later than `longest_wait_seconds` after
    the first try: a job's machine may cost more than the comment is worth. The clock and the sleep
    are the system's, but for tests.
    """

    timeout_seconds: float = 20.0
    answer_seconds: float = 60.0
    backoff_seconds: float = 1.0
    pause_seconds: float = 1.0
    longest_wait_seconds: float = 120.0
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)
    monotonic: Callable[[], float] = field(default=time.monotonic, repr=False)
    now: Callable[[], float] = field(default=time.time, repr=False)

    def backoff(self, tries: int) -> float:
        """Seconds before a request that failed `tries` times is sent again."""
        return self.backoff_seconds * (1 << tries)


GITHUB_POLICY: Final = RetryPolicy()


class GitHubRetry(Retry):
    """urllib3's retries of one request, by GitHub's rules and up to a moment.

    A fault (no answer, 5xx) is repeated for `allowed_methods` only. A limit is waited for whatever
    the method: it kept the request from being carried out. `limit` reads it from an answer, and
    raises what such an answer means when it is none. `ends_at` is of the policy's monotonic clock.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        limit: Callable[[BaseHTTPResponse], LimitedError],
        ends_at: float,
        **counts: Any,  # noqa: ANN401 - urllib3's own, as `new` hands them on
    ) -> None:
        # an answer that is a fault to the end is handed on, for its words
        rules: dict[str, Any] = {"status_forcelist": range(500, 600), "raise_on_status": False}
        super().__init__(**{"total": RETRIES} | rules | counts)
        self._policy = policy
        self._limit = limit
        self._ends_at = ends_at
        self._wait_seconds = 0.0

    def new(self, **counts: Any) -> Self:  # noqa: ANN401 - as above
        """The same rules with other counts."""
        rules = {"policy": self._policy, "limit": self._limit, "ends_at": self._ends_at}
        return super().new(**rules | counts)

    def is_retry(self, method: str, status_code: int, has_retry_after: bool = False) -> bool:  # noqa: ARG002, FBT001, FBT002 - urllib3's signature
        """Whether an answer is a fault to repeat, or may be a limit."""
        return status_code in LIMITED_STATUSES or super().is_retry(method, status_code)

    def increment(
        self,
        method: str | None = None,
        url: str | None = None,
        response: BaseHTTPResponse | None = None,
        error: Exception | None = None,
        _pool: ConnectionPool | None = None,
        _stacktrace: TracebackType | None = None,
    ) -> Self:
        """The retry after this one; `MaxRetryError` or the answer's own error without another."""
        left = self._ends_at - self._policy.monotonic()
        wait = self._policy.backoff(len(self.history))
        if response is not None and response.status in LIMITED_STATUSES:
            try:
                limited = self._limit(response)
            except HTTPError as broken_off:
                return self.increment(method, url, error=broken_off, _pool=_pool)
            finally:
                response.close()
            # asking again before the time is over counts as abuse: rather not at all
            if not self.total or limited.seconds > left:
                raise limited
            wait = limited.seconds
        # urllib3 itself would repeat some errors whatever the method, as one of TLS in an answer
        elif wait > left or (error is not None and method not in (self.allowed_methods or ())):
            raise MaxRetryError(_pool, url, error) from error  # type: ignore[arg-type] # as urllib3's own
        following = super().increment(method, url, response, error, _pool, _stacktrace)
        if response is not None:
            # urllib3 would read the rest of it, however much that is and however slowly it comes
            response.close()
        following._wait_seconds = wait  # noqa: SLF001 - of this class
        return following

    def sleep(self, response: BaseHTTPResponse | None = None) -> None:  # noqa: ARG002 - urllib3's signature
        """Wait as long as the last answer, or the fault, asks for."""
        self._policy.sleep(self._wait_seconds)


def tells_limit(response: BaseHTTPResponse, told: str) -> bool:
    """Whether a 403 or 429 means "not now": the primary rate limit or a secondary one."""
    return (
        response.status == requests.codes.too_many_requests
        or "Retry-After" in response.headers
        or response.headers.get("X-RateLimit-Remaining") == "0"
        or "rate limit" in told.lower()
    )


def limit_seconds(headers: Mapping[str, str], now: float) -> float:
    """How long the limit lasts, as far as it was told; `now` in seconds since 1970."""
    wanted = _number(headers.get("Retry-After", ""))
    if wanted is not None:
        return wanted
    reset = _number(headers.get("X-RateLimit-Reset", ""))
    if headers.get("X-RateLimit-Remaining") == "0" and reset is not None:
        # the full second may not be over yet
        return max(0.0, reset - now) + 1.0
    return UNKNOWN_LIMIT_SECONDS


def _number(text: str) -> float | None:
    """A count of seconds in ASCII digits; nothing else is understood."""
    short = text.strip()
    # `Retry-After` may be a date as well (RFC 9110, 10.2.3): GitHub sends seconds
    return float(short) if short.isascii() and short.isdigit() and len(short) <= 12 else None  # noqa: PLR2004 - longer than any date in seconds


class LimitedError(PublishError):
    """A request that was not carried out, but may be sent again after `seconds`."""

    def __init__(self, seconds: float, *, status: int, told: str) -> None:
        super().__init__(
            f"GitHub's rate limit is used up for another {seconds:,.0f} s ({status})",
            hint="Run the job again later.",
            details=details_of(told),
        )
        self.seconds = seconds


def details_of(told: str) -> tuple[str, ...]:
    return (told,) if told else ()
