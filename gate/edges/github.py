"""The comments of a pull request on GitHub.

Endpoints: GitHub REST API, version 2022-11-28, "Issue comments": a pull request is an issue too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

import requests
from pydantic import BaseModel, TypeAdapter, ValidationError

from gate.edges.github_http import GitHubApi, Patience, UnansweredError
from gate.errors import PublishError
from gate.records.report import Comment

PAGE_SIZE: Final = 100
# a list without end would keep the job busy for ever; nobody reads this many comments
MAX_PAGES: Final = 200
TRIES: Final = 3
PATIENCE: Final = Patience()
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


_PAGE = TypeAdapter(tuple[_ApiComment, ...])


class GitHubComments:
    """`gate.ports.Comments` for one pull request; a context manager that closes its connections.

    `api_url` is the base of the API with the path prefix that an Enterprise server has. Reading
    and replacing are retried. A comment is created again only after a new look at the list has
    shown that the first try left none. Every failure is a `PublishError`.
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
        if not _REPOSITORY.fullmatch(repository):
            raise PublishError(
                f"{repository[:100]!r} is no repository", hint="It is written as owner/name."
            )
        self._api = GitHubApi(api_url, token, patience)
        self._issues = f"{self._api.base}/repos/{repository}/issues"
        self._list_url = f"{self._issues}/{number}/comments"
        self._patience = patience
        self._known: frozenset[int] = frozenset()

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

    def listed(self) -> tuple[Comment, ...]:
        """All comments of all pages, in order of creation."""
        comments = tuple(self._every_page())
        self._known = frozenset(comment.comment_id for comment in comments)
        return comments

    def create(self, body: str) -> Comment:
        """Write a new comment, once: also when the answer to the first try got lost."""
        tries = 0
        while True:
            try:
                return self._written("POST", self._list_url, body)
            except UnansweredError:
                tries += 1
                time.sleep(self._patience.backoff_seconds * 2**tries)
                left = self._left_behind(body)
                if left is not None:
                    return left
                if tries == TRIES:
                    raise

    def update(self, comment_id: int, body: str) -> Comment:
        """Replace the text of a comment."""
        return self._written("PATCH", f"{self._issues}/comments/{comment_id}", body)

    def _left_behind(self, body: str) -> Comment | None:
        """A comment with this text that was not there when the list was last read."""
        for comment in self._every_page():
            if comment.comment_id not in self._known and _same_text(comment.body, body):
                return comment
        return None

    def _every_page(self) -> Iterator[Comment]:
        url = f"{self._list_url}?per_page={PAGE_SIZE}"
        for _ in range(MAX_PAGES):
            response = self._api.send("GET", url, None)
            for found in _page(response):
                yield found.comment()
            url = response.links.get("next", {}).get("url", "")
            if not url:
                return
        raise PublishError(f"the pull request has more than {MAX_PAGES * PAGE_SIZE:,} comments")

    def _written(self, method: str, url: str, body: str) -> Comment:
        response = self._api.send(method, url, {"body": body})
        try:
            return _ApiComment.model_validate_json(response.content).comment()
        except ValidationError as error:
            raise _not_understood() from error


def _page(response: requests.Response) -> tuple[_ApiComment, ...]:
    try:
        return _PAGE.validate_json(response.content)
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
