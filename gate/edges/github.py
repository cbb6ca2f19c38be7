"""The comments of a pull request on GitHub.

Endpoints: GitHub REST API, version 2022-11-28, "Issue comments": a pull request is an issue too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

from pydantic import BaseModel, TypeAdapter, ValidationError

from gate.edges.github_http import Answer, GitHubApi
from gate.edges.github_refusals import (
    COMMENT_REFUSALS,
    Refusals,
    RefusedError,
    UnansweredError,
)
from gate.edges.github_waiting import Patience
from gate.errors import PublishError
from gate.records.report import Comment

PAGE_SIZE: Final = 100
# a list without end would keep the job busy for ever; nobody reads this many comments
MAX_PAGES: Final = 200
TRIES: Final = 3
PATIENCE: Final = Patience()
# GitHub's machines need not agree on the second
CLOCK_SKEW: Final = timedelta(minutes=1)
# whoever GITHUB_TOKEN writes as; such a token may not ask the API for its own name
BOT: Final = "github-actions[bot]"
INSTALLATION_PREFIX: Final = "ghs_"
NOT_A_PERSON: Final = frozenset({401, 403, 404})
# neither part may be a step up in the address
_REPOSITORY = re.compile(r"[A-Za-z0-9_-]+/(?!\.\.?\Z)[A-Za-z0-9._-]+")


class _User(BaseModel):
    login: str


class _ApiComment(BaseModel):
    """The part of GitHub's answer that is used; a deleted account leaves no user."""

    id: int
    html_url: str
    body: str | None = None
    user: _User | None = None

    def comment(self) -> Comment:
        return Comment(
            comment_id=self.id,
            author=self.user.login if self.user else "",
            body=self.body or "",
            url=self.html_url,
        )


_NAME = TypeAdapter(_User)
_PAGE = TypeAdapter(tuple[_ApiComment, ...])


class GitHubComments:
    """`gate.ports.Comments` for one pull request; a context manager that closes its connections.

    `api_url` is the base of the API with the path prefix that an Enterprise server has. A comment
    is created again only after a new look at the list has shown that the first try left none.
    Every failure is a `PublishError`.
    """

    def __init__(
        self,
        *,
        api_url: str,
        repository: str,
        number: int,
        token: str,
        patience: Patience = PATIENCE,
    ) -> None:
        self._api = repository_api(api_url, repository, token, patience, COMMENT_REFUSALS)
        self._issues = f"{self._api.base}/repos/{repository}/issues"
        self._list_url = f"{self._issues}/{number}/comments"
        self._of_installation = token.startswith(INSTALLATION_PREFIX)
        self._patience = patience
        self._known: set[int] = set()
        self._listed_at = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._api.close()

    def author(self) -> str:
        """Whoever the token writes as: the job's own bot, or the person that a token belongs to."""
        if self._of_installation:
            return BOT
        try:
            answer = self._api.send("GET", f"{self._api.base}/user", None)
        except RefusedError as error:
            if error.status in NOT_A_PERSON:
                return BOT
            raise
        try:
            return _NAME.validate_json(answer.content).login
        except ValidationError as error:
            raise _not_understood() from error

    def listed(self) -> Iterator[Comment]:
        """All comments in order of creation; a page is fetched when somebody asks for it.

        Whoever has found what he looks for stops, and the pages behind it cost nothing.
        """
        self._known.clear()
        self._listed_at = ""
        for comment in self._every_page(f"{self._list_url}?per_page={PAGE_SIZE}"):
            self._known.add(comment.comment_id)
            yield comment

    def create(self, body: str) -> Comment:
        """Write a new comment, once: also when the answer to the first try got lost."""
        tries = 0
        while True:
            try:
                return self._written("POST", self._list_url, body)
            except UnansweredError:
                tries += 1
                self._patience.sleep(self._patience.backoff(tries))
                left = self._left_behind(body)
                if left is not None:
                    return left
                if tries == TRIES:
                    raise

    def update(self, comment_id: int, body: str) -> Comment:
        """Replace the text of a comment."""
        return self._written("PATCH", f"{self._issues}/comments/{comment_id}", body)

    def _left_behind(self, body: str) -> Comment | None:
        """A comment with this text that was not there when the list was last read.

        Only what changed since then is asked for: ten thousand comments are not read again.
        """
        since = f"&since={quote(self._listed_at)}" if self._listed_at else ""
        for comment in self._every_page(f"{self._list_url}?per_page={PAGE_SIZE}{since}"):
            if comment.comment_id not in self._known and _same_text(comment.body, body):
                return comment
        return None

    def _every_page(self, url: str) -> Iterator[Comment]:
        seen: set[str] = set()
        for _ in range(MAX_PAGES):
            answer = self._api.send("GET", url, None)
            self._listed_at = self._listed_at or _moment(answer)
            for found in _page(answer):
                yield found.comment()
            seen.add(url)
            url = answer.next_url
            if not url:
                return
            if url in seen:
                raise PublishError("GitHub's list of comments leads back to a page already read")
        raise PublishError(
            f"the pull request has more than {MAX_PAGES * PAGE_SIZE:,} comments",
            hint="The job summary holds the report; a new pull request gets comments again.",
        )

    def _written(self, method: str, url: str, body: str) -> Comment:
        answer = self._api.send(method, url, {"body": body})
        try:
            return _ApiComment.model_validate_json(answer.content).comment()
        except ValidationError as error:
            raise _not_understood() from error


def repository_api(
    api_url: str, repository: str, token: str, patience: Patience, refusals: Refusals
) -> GitHubApi:
    """The API for requests about one repository, written as owner/name."""
    if not _REPOSITORY.fullmatch(repository):
        raise PublishError(
            f"{repository[:100]!r} is no repository", hint="It is written as owner/name."
        )
    return GitHubApi(api_url, token, patience, refusals)


def _moment(answer: Answer) -> str:
    """The server's own time of an answer, a little before it, as the API writes it; or nothing."""
    try:
        told = parsedate_to_datetime(answer.headers.get("Date", ""))
    except ValueError:
        return ""
    if told.tzinfo is None:
        return ""
    return (told.astimezone(UTC) - CLOCK_SKEW).strftime("%Y-%m-%dT%H:%M:%SZ")


def _page(answer: Answer) -> tuple[_ApiComment, ...]:
    try:
        return _PAGE.validate_json(answer.content)
    except ValidationError as error:
        raise _not_understood() from error


def _not_understood() -> PublishError:
    return PublishError(
        "the answer is not that of GitHub's API",
        hint="Check that GITHUB_API_URL is the address of the API and not of the web pages.",
    )


def _same_text(left: str, right: str) -> bool:
    """GitHub may hand a text back with other line ends and without the last one."""
    return left.replace("\r\n", "\n").strip() == right.replace("\r\n", "\n").strip()
