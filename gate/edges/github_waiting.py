"""How long to wait for GitHub, and before what is asked again.

Limits and headers: GitHub REST API, version 2022-11-28, "Rate limits" and "Best practices": obey
`retry-after`, else `x-ratelimit-reset`, else wait for a minute; a second between writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import requests

RETRIES: Final = 3
# the secondary limit, told without saying for how long
UNKNOWN_LIMIT_SECONDS: Final = 60.0
# a job does not wait longer for a comment: its machine may cost more than the comment is worth
LONGEST_WAIT_SECONDS: Final = 120.0
LIMITED_STATUSES: Final = frozenset({requests.codes.forbidden, requests.codes.too_many_requests})


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long an answer may take, and how long to wait between requests.

    `timeout_seconds` bounds silence and `answer_seconds` the whole of an answer: one that drips
    in byte by byte is never silent. The clock and the sleep are the system's, but for tests.
    """

    timeout_seconds: float = 20.0
    answer_seconds: float = 60.0
    backoff_seconds: float = 1.0
    pause_seconds: float = 1.0
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)
    monotonic: Callable[[], float] = field(default=time.monotonic, repr=False)
    now: Callable[[], float] = field(default=time.time, repr=False)

    def backoff(self, tries: int) -> float:
        """Seconds before a request that failed `tries` times is sent again."""
        return self.backoff_seconds * (1 << tries)


def is_limited(status: int, headers: Mapping[str, str], told: str) -> bool:
    """Whether a refusal means "not now": a used-up rate limit, the primary or a secondary one."""
    if status not in LIMITED_STATUSES:
        return False
    return (
        status == requests.codes.too_many_requests
        or "Retry-After" in headers
        or headers.get("X-RateLimit-Remaining") == "0"
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
    return float(short) if short.isascii() and short.isdigit() and len(short) <= 12 else None  # noqa: PLR2004 - longer than any date in seconds


class Pace:
    """Keeps writes apart: GitHub takes many at once for abuse."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._last_write: float | None = None

    def before(self, method: str) -> None:
        """Wait where this method writes and another write was just sent."""
        if method == "GET":
            return
        now = self._patience.monotonic()
        if self._last_write is not None:
            rest = self._last_write + self._patience.pause_seconds - now
            if rest > 0:
                self._patience.sleep(rest)
        self._last_write = self._patience.monotonic()
