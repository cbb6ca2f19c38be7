"""Where a verdict is published, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Mode(StrEnum):
    """How much of the pipeline one step runs: all of it, the training, or the judging."""

    GATE = "gate"
    RUN = "run"
    JUDGE = "judge"


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Publication:
    """Whether the comment is there, and if not, why."""

    comment_url: str = ""
    action: str = ""
    reason_not_posted: str = ""


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
