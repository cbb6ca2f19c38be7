"""Pull requests on GitHub: their comments, finding one for a commit, statuses, a token's rights.

Endpoints, all of the GitHub REST API, version 2022-11-28:

- "Issue comments", because a pull request is an issue too.
- "List pull requests", with `head=owner:branch`.
- "Commit statuses". The newest status of a context counts, so setting one again does no harm.

The API answers 403 if a permission is missing, but no answer lists what a job's token may do. So
`probe_token` asks for a comment without the required text. A server that lets the token comment
refuses this with 422, and cannot write it. A branch without a name is asked for in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime
from typing import Final, Self
from urllib.parse import quote, urlencode

from pydantic import BaseModel, TypeAdapter

from gate.errors import PublishError
from gate.system.github.api import (
    COMMENT_REFUSALS,
    PULL_REFUSALS,
    STATUS_REFUSALS,
    GitHubApi,
    RefusedError,
    next_page,
    read_as,
)
from gate.system.github.records import Comment, CommitStatus, PullRequest, RunOrigin, TokenSeen
from gate.system.http import GITHUB_POLICY, HttpAnswer, RetryPolicy, UnansweredError

PAGE_SIZE: Final = 100
# Limits a list that never ends, which would keep the job busy. Nobody reads this many comments.
MAX_PAGES: Final = 200
TRIES: Final = 3
# the clocks of GitHub's machines may differ
CLOCK_SKEW: Final = timedelta(minutes=1)
# The author of comments by GITHUB_TOKEN. Such a token may not ask the API for its own name.
BOT: Final = "github-actions[bot]"
INSTALLATION_PREFIX: Final = "ghs_"
NOT_A_PERSON: Final = frozenset({401, 403, 404})


class _User(BaseModel):
    login: str


class _ApiComment(BaseModel):
    """The used fields of GitHub's answer; a comment of a deleted account has no user."""

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
    """The `Comments` of one pull request; a context manager that closes its connections.

    `api_url` is the base of the API, with the path prefix of an Enterprise server. Creating a
    comment is retried only after the list shows that the first try left none. Every failure is a
    `PublishError`.
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
        """Return the author of the token's comments: the job's bot, or the owner of the token."""
        if self._of_installation:
            return BOT
        try:
            answer = self._api.send("GET", f"{self._api.base}/user")
        except RefusedError as error:
            if error.status in NOT_A_PERSON:
                return BOT
            raise
        return read_as(answer, _USER).login

    def listed(self) -> Iterator[Comment]:
        """Yield all comments in the order of creation, fetching each page when it is needed.

        A caller that stops early causes no further requests.
        """
        self._known.clear()
        self._listed_at = ""
        for comment in self._every_page(f"{self._list_url}?per_page={PAGE_SIZE}"):
            self._known.add(comment.comment_id)
            yield comment

    def create(self, body: str) -> Comment:
        """Write a new comment exactly once, even if the answer to the first try is lost."""
        tries = 0
        while True:
            try:
                return self._written("POST", self._list_url, body)
            except UnansweredError:
                tries += 1
                self._policy.sleep(self._policy.backoff(tries))
                # A lost answer does not say whether the comment was written. Look for it, so that
                # it is not written twice.
                left = self._left_behind(body)
                if left is not None:
                    return left
                if tries == TRIES:
                    raise

    def update(self, comment_id: int, body: str) -> Comment:
        """Replace the text of a comment."""
        return self._written("PATCH", f"{self._issues}/comments/{comment_id}", body)

    def _left_behind(self, body: str) -> Comment | None:
        """Return a comment with this text that is new since the list was last read, or None.

        Only changes since then are asked for, so that ten thousand comments are not read again.
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
            # The time of the first page, so that comments written during later pages are not
            # missed.
            self._listed_at = self._listed_at or _moment(answer)
            for pull in read_as(answer, _PAGE):
                yield pull.comment()
            seen.add(url)
            url = next_page(answer)
            if not url:
                return
            # Next links come from the server, and a proxy's mistake must not cause an endless loop.
            if url in seen:
                raise PublishError("GitHub's list of comments links back to a page already read")
        raise PublishError(
            f"the pull request has more than {MAX_PAGES * PAGE_SIZE:,} comments",
            hint="The job summary holds the report; a new pull request gets comments again.",
        )

    def _written(self, method: str, url: str, body: str) -> Comment:
        return read_as(self._api.send(method, url, {"body": body}), _COMMENT).comment()


def _moment(answer: HttpAnswer) -> str:
    """Return the server's time of an answer, minus `CLOCK_SKEW`, in the API's form, or nothing."""
    try:
        date = parsedate_to_datetime(answer.headers.get("date", ""))
    except ValueError:
        return ""
    if date.tzinfo is None:
        return ""
    return (date.astimezone(UTC) - CLOCK_SKEW).strftime("%Y-%m-%dT%H:%M:%SZ")


def _same_text(left: str, right: str) -> bool:
    """Compare texts; GitHub may return one with other line ends and without the last one."""
    return left.replace("\r\n", "\n").strip() == right.replace("\r\n", "\n").strip()


class _Repository(BaseModel):
    full_name: str


class _Side(BaseModel):
    """A branch and its commit; the branch of a deleted fork has no repository."""

    ref: str
    sha: str
    repo: _Repository | None = None


class _Pull(BaseModel):
    number: int
    head: _Side
    base: _Side


_PULLS = TypeAdapter(tuple[_Pull, ...])


def find_pull_request(
    *,
    api_url: str,
    repository: str,
    token: str,
    origin: RunOrigin,
    policy: RetryPolicy = GITHUB_POLICY,
) -> PullRequest:
    """Return the only open pull request whose head is the commit that a workflow ran on.

    Raises `PublishError` if there is none (its branch moved on, or it was closed) or several.
    """
    asked = urlencode(
        {"state": "open", "head": f"{origin.head_owner}:{origin.head_branch}", "per_page": "100"}
    )
    with GitHubApi(api_url, repository, token, policy, PULL_REFUSALS) as api:
        pulls = read_as(api.send("GET", f"{api.repository_url}/pulls?{asked}"), _PULLS)
    matching = [
        pull
        for pull in pulls
        # The branch may have moved on: a verdict belongs to the commit that was trained.
        if pull.head.sha == origin.head_sha
        and pull.head.repo is not None
        and pull.head.repo.full_name == origin.head_repository
        and pull.base.repo is not None
        and pull.base.repo.full_name == repository
    ]
    if len(matching) != 1:
        raise PublishError(
            f"{len(matching) or 'no'} open pull requests have the head {origin.head_sha[:12]}",
            hint="It was pushed to again or closed meanwhile: the newer push has its own run. "
            "Two pull requests from one branch cannot be distinguished here.",
        )
    (number,) = matching
    return PullRequest(
        number=number.number,
        head_sha=number.head.sha,
        base_sha=number.base.sha,
        base_branch=number.base.ref,
        from_fork=origin.head_repository != repository,
    )


# GitHub refuses longer descriptions
DESCRIPTION_LIMIT = 140


def set_commit_status(
    status: CommitStatus,
    *,
    api_url: str,
    repository: str,
    token: str,
    policy: RetryPolicy = GITHUB_POLICY,
) -> None:
    """Set a status on the commit that it names; every failure is a `PublishError`."""
    body = {
        "state": status.state.value,
        "context": status.context,
        "description": status.description[:DESCRIPTION_LIMIT],
        # GitHub refuses an empty address but not a missing one
        **({"target_url": status.target_url} if status.target_url else {}),
    }
    # The newest status of a context counts, so setting it twice is harmless.
    repeatable = frozenset({"POST"})
    with GitHubApi(api_url, repository, token, policy, STATUS_REFUSALS, repeatable) as api:
        api.send("POST", f"{api.repository_url}/statuses/{status.commit}", body)


# For a person who is waiting: do not wait for a rate limit, report it as a problem.
AT_ONCE = RetryPolicy(longest_wait_seconds=0.0)


def probe_token(
    api_url: str,
    repository: str,
    token: str,
    *,
    number: int | None = None,
    contents: bool = False,
) -> TokenSeen:
    """Find out what a token may do: ask for the repository, and for a comment that cannot exist.

    The comment is asked for only if `number` names a pull request. `contents` asks for an
    impossible branch too.
    """
    try:
        with GitHubApi(api_url, repository, token, AT_ONCE, {}) as api:
            read = _status(api, "GET", api.repository_url, None)
            comments = f"{api.repository_url}/issues/{number}/comments"
            branches = f"{api.repository_url}/git/refs"
            return TokenSeen(
                repository_status=read,
                comment_status=0 if number is None else _status(api, "POST", comments, {}),
                contents_status=_status(api, "POST", branches, {}) if contents else 0,
            )
    except PublishError as error:
        return TokenSeen(problem=error.message, fix=error.hint)


def _status(api: GitHubApi, method: str, url: str, body: Mapping[str, str] | None) -> int:
    try:
        return api.send(method, url, body).status
    except RefusedError as error:
        return error.status
