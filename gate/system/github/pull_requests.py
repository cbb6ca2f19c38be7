"""The comments of a pull request on GitHub.

Endpoints: GitHub REST API, version 2022-11-28, "Issue comments": a pull request is an issue too.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime
from typing import Final, Self
from urllib.parse import quote

from pydantic import BaseModel, TypeAdapter

from gate.errors import PublishError
from gate.system.github.api import GitHubApi, Response
from gate.system.github.pull_request_records import Comment
from gate.system.github.refusals import COMMENT_REFUSALS, RefusedError, UnansweredError
from gate.system.retry import GITHUB_POLICY, RetryPolicy

PAGE_SIZE: Final = 100
# a list without end would keep the job busy for ever; nobody reads this many comments
MAX_PAGES: Final = 200
TRIES: Final = 3
# GitHub's machines need not agree on the second
CLOCK_SKEW: Final = timedelta(minutes=1)
# whoever GITHUB_TOKEN writes as; such a token may not ask the API for its own name
BOT: Final = "github-actions[bot]"
INSTALLATION_PREFIX: Final = "ghs_"
NOT_A_PERSON: Final = frozenset({401, 403, 404})


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


_USER = TypeAdapter(_User)
_COMMENT = TypeAdapter(_ApiComment)
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
        policy: RetryPolicy = GITHUB_POLICY,
    ) -> None:
        self._api = GitHubApi(api_url, repository, token, policy, COMMENT_REFUSALS)
        self._issues = f"{self._api.repository_url}/issues"
        self._list_url = f"{self._issues}/{number}/comments"
        self._of_installation = token.startswith(INSTALLATION_PREFIX)
        self._policy = policy
        self._known: set[int] = set()
        self._listed_at = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._api.close()

    def author(self) -> str:
        """Whoever the token writes as: the job's own bot, or the person that a token belongs to."""
        if self._of_installation:
            return BOT
        try:
            answer = self._api.send("GET", f"{self._api.base}/user")
        except RefusedError as error:
            if error.status in NOT_A_PERSON:
                return BOT
            raise
        return answer.read_as(_USER).login

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
                self._policy.sleep(self._policy.backoff(tries))
                # a lost answer says nothing about the comment: looked for, so that none stands
                # there twice
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
            answer = self._api.send("GET", url)
            # the time of the first page: what comes while later ones are read must not be missed
            self._listed_at = self._listed_at or _moment(answer)
            for found in answer.read_as(_PAGE):
                yield found.comment()
            seen.add(url)
            url = answer.next_url
            if not url:
                return
            # next links come from the server: a proxy's mistake must not become an endless loop
            if url in seen:
                raise PublishError("GitHub's list of comments links back to a page already read")
        raise PublishError(
            f"the pull request has more than {MAX_PAGES * PAGE_SIZE:,} comments",
            hint="The job summary holds the report; a new pull request gets comments again.",
        )

    def _written(self, method: str, url: str, body: str) -> Comment:
        return self._api.send(method, url, {"body": body}).read_as(_COMMENT).comment()


def _moment(answer: Response) -> str:
    """The server's own time of an answer, a little before it, as the API writes it; or nothing."""
    try:
        told = parsedate_to_datetime(answer.headers.get("Date", ""))
    except ValueError:
        return ""
    if told.tzinfo is None:
        return ""
    return (told.astimezone(UTC) - CLOCK_SKEW).strftime("%Y-%m-%dT%H:%M:%SZ")


def _same_text(left: str, right: str) -> bool:
    """GitHub may hand a text back with other line ends and without the last one."""
    return left.replace("\r\n", "\n").strip() == right.replace("\r\n", "\n").strip()
