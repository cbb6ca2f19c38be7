"""The failures between a client and GitHub, as scripted answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, kw_only=True)
class Scripted:
    """An answer told beforehand; status 0 cuts the connection without one.

    `stores` carries the request out first. `silent_seconds` lets the client wait; `dripping` sends
    the answer byte by byte with that pause, `broken_off` promises more than it
    sends, and text as content is `repeated` so many times.
    """

    status: int = 0
    content: object = None
    headers: tuple[tuple[str, str], ...] = ()
    stores: bool = False
    silent_seconds: float = 0.0
    dripping: bool = False
    broken_off: bool = False
    repeated: int = 1


class Failure(Enum):
    """The failures that a test can request, as GitHub or the network would cause them."""

    UNAUTHORISED = Scripted(status=401, content={"message": "Bad credentials"})
    REFUSED = Scripted(status=403, content={"message": "Resource not accessible by integration"})
    QUOTA_EMPTY = Scripted(
        status=403, headers=(("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "9999999999"))
    )
    QUOTA_SOON_BACK = Scripted(
        status=403, headers=(("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "1030"))
    )
    SECONDARY_LIMIT = Scripted(
        status=403, content={"message": "You have exceeded a secondary rate limit."}
    )
    SECONDARY_LIMIT_TOLD = Scripted(status=403, headers=(("Retry-After", "7"),))
    LIMITED_FOR_LONG = Scripted(status=429, headers=(("Retry-After", "3600"),))
    LIMITED_ODDLY = Scripted(status=429, headers=(("Retry-After", "a while"),))
    LOCKED = Scripted(
        status=403, content={"message": "Unable to create comment because issue is locked."}
    )
    NOT_FOUND = Scripted(status=404, content={"message": "Not Found"})
    GONE = Scripted(status=410, content={"message": "Issues are disabled for this repo"})
    TEAPOT = Scripted(status=418, content={"message": ["no", "text"]})
    TEAPOT_LIST = Scripted(status=418, content=["no", "object"])
    TEAPOT_TEXT = Scripted(status=418, content="no JSON")
    RATE_LIMITED = Scripted(status=429, headers=(("Retry-After", "0"),))
    SERVER_ERROR = Scripted(status=500, content={"message": "Server Error"})
    BAD_GATEWAY_AFTER_STORING = Scripted(status=502, stores=True)
    UNAVAILABLE = Scripted(status=503, content={"message": "Unavailable"})
    CUT = Scripted()
    DRIPPING = Scripted(status=200, content=[], dripping=True)
    DRIPPING_FAULT = Scripted(status=500, dripping=True)
    ENDLESS = Scripted(status=200, content=" ", repeated=65 * 1024 * 1024)
    BROKEN_OFF = Scripted(status=200, content=[], broken_off=True)
    LIMIT_BROKEN_OFF = Scripted(status=429, content={}, broken_off=True)
    CUT_AFTER_STORING = Scripted(stores=True)
    SILENT = Scripted(silent_seconds=1.5)
    MOVED_HERE = Scripted(status=307, headers=(("Location", "{path}"),))
    MOVED_TO_ANOTHER_HOST = Scripted(
        status=301, headers=(("Location", "http://elsewhere.invalid/repos"),)
    )
    NOT_JSON = Scripted(status=200, content="<html>a page to sign in</html>")
    SAME_PAGE_AGAIN = Scripted(status=200, content=[], headers=(("Link", '<{url}>; rel="next"'),))
