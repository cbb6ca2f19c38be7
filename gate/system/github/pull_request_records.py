"""What GitHub holds of a pull request and of a workflow's run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class PullRequest:
    """The pull request that an event is about; both commits are full hashes.

    `base_branch` is the branch that it is to be merged into: with the head it is what a verdict is
    about.
    """

    number: int
    head_sha: str
    base_sha: str
    base_branch: str
    from_fork: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOrigin:
    """What a finished workflow was started by; a `workflow_run` event names no pull request."""

    head_sha: str
    head_repository: str
    head_owner: str
    head_branch: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RunAddress:
    """A workflow run of a repository (owner/name), by its number, and the API that knows of it."""

    api_url: str
    repository: str
    run: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Comment:
    """A comment on a pull request."""

    comment_id: int
    author: str
    body: str
    url: str


class StatusState(StrEnum):
    """How a commit status reads; only `success` lets a required status pass."""

    SUCCESS = "success"
    FAILURE = "failure"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitStatus:
    """One line beside a commit (a full hash); the newest of a context counts."""

    commit: str
    state: StatusState
    context: str
    description: str
    target_url: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenSeen:
    """What the API answered to a token: status codes, 0 where nothing was asked.

    `comment_status` is the answer to a comment without a text, `contents_status` that to a branch
    without a name, which no server can write. With a `problem` there was no answer to judge, and
    `fix` says what can be done.
    """

    repository_status: int = 0
    comment_status: int = 0
    contents_status: int = 0
    problem: str = ""
    fix: str = ""


# an artifact that a proposal comes in holds the package with the checkpoint too
MAX_ARTIFACT_BYTES: Final = 4 * 1024**3


class Comments(Protocol):
    """The comments of one pull request."""

    def author(self) -> str:
        """The name that this token's comments carry."""
        ...

    def listed(self) -> Iterable[Comment]:
        """All of them, in order of creation, fetched as far as they are read."""
        ...

    def create(self, body: str) -> Comment:
        """Write a new one."""
        ...

    def update(self, comment_id: int, body: str) -> Comment:
        """Replace the text of one."""
        ...
