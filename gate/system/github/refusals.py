"""GitHub's status codes as messages with a hint.

Status codes: GitHub REST API, version 2022-11-28, "Troubleshooting the REST API".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import requests
from urllib3.exceptions import ReadTimeoutError

from gate.errors import PublishError
from gate.system.retry import details_of

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
