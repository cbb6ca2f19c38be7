"""What GitHub holds of a pull request and of a workflow's run, and how a person names that.

A token goes to that API, so an address from somewhere else is taken only where it is one of this
clone's own repositories.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from gate.errors import SettingsError


def api_address(variables: Mapping[str, str]) -> str:
    """Where GitHub's API is, as a runner says; github.com's where nobody says."""
    return variables.get("GITHUB_API_URL", "https://api.github.com").rstrip("/")


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


GITHUB: Final = "github.com"
RUN_NUMBER: Final = re.compile(r"[1-9][0-9]{0,18}")
RUN_URL: Final = re.compile(
    r"https?://([A-Za-z0-9.-]+(?::[0-9]+)?)/([A-Za-z0-9._-]+/[A-Za-z0-9._-]+)"
    r"/actions/runs/([1-9][0-9]{0,18})(?:[/?#].*)?"
)
# https://host/owner/name.git, ssh://git@host/owner/name, git@host:owner/name.git
REMOTE: Final = re.compile(
    r"(?:(?:https?|ssh|git)://)?(?:[^@/]*@)?([A-Za-z0-9.-]+)(?::[0-9]+)?[/:]"
    r"([A-Za-z0-9._-]+/[A-Za-z0-9._-]+?)(?:\.git)?/?"
)
# GitHub Enterprise Cloud with data residency: the API lies on a host of its own
RESIDENT_SUFFIX: Final = ".ghe.com"


@dataclass(frozen=True, slots=True)
class _Place:
    host: str
    repository: str

    def same(self, other: _Place) -> bool:
        """GitHub's names do not depend on case."""
        return (self.host.lower(), self.repository.lower()) == (
            other.host.lower(),
            other.repository.lower(),
        )


def run_address(text: str, remotes: Mapping[str, str], variables: Mapping[str, str]) -> RunAddress:
    """The run that a number or a URL names; `remotes` are the clone's, by name.

    Raises `SettingsError` for a text that is neither, for a repository that is none of the
    clone's, and for a server of which only GITHUB_API_URL could say where its API is.
    """
    known = {name: place for name, url in remotes.items() if (place := _place(url)) is not None}
    if RUN_NUMBER.fullmatch(text):
        return _address(_own(known, variables), text, variables)
    url = RUN_URL.fullmatch(text)
    if url is None:
        raise SettingsError(
            f"--run {text[:80]!r} is neither a run's number nor its URL",
            hint="Copy it from the address of the run's page: .../actions/runs/NUMBER.",
        )
    place = _Place(url[1].partition(":")[0], url[2])
    here = _of_job(variables)
    if not any(
        place.same(place_known) for place_known in (*known.values(), *((here,) if here else ()))
    ):
        raise SettingsError(
            f"--run: {place.host}/{place.repository} is not a remote of this clone",
            hint="Your token is sent to no other repository's server. If it is yours, add it with "
            "`git remote add`.",
        )
    return _address(place, url[3], variables)


def _own(known: Mapping[str, _Place], variables: Mapping[str, str]) -> _Place:
    """The repository that a bare number is about: the job's, else that of `origin`."""
    here = _of_job(variables)
    if here is not None:
        return here
    if "origin" in known:
        return known["origin"]
    if len(known) == 1:
        return next(iter(known.values()))
    raise SettingsError(
        "--run: this clone has no remote `origin` on GitHub, so the number could be any "
        "repository's",
        hint="Name the run by its URL, or download its artifact and use --from.",
    )


def _of_job(variables: Mapping[str, str]) -> _Place | None:
    """The repository of the job that this runs in, if it runs in one."""
    server, repository = (
        variables.get(name, "") for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY")
    )
    return _place(f"{server}/{repository}") if server and repository else None


def _place(url: str) -> _Place | None:
    match = REMOTE.fullmatch(url)
    return None if match is None else _Place(match[1], match[2])


def _address(place: _Place, run: str, variables: Mapping[str, str]) -> RunAddress:
    host = place.host.lower()
    address = variables.get("GITHUB_API_URL", "")
    if address:
        api = address
    elif host == GITHUB:
        api = f"https://api.{GITHUB}"
    elif host.endswith(RESIDENT_SUFFIX):
        api = f"https://api.{host}"
    else:
        raise SettingsError(
            f"--run: {place.host} is not {GITHUB}, so its API is not known",
            hint="For an Enterprise Server set GITHUB_API_URL to https://HOST/api/v3. From any "
            "other server, download the artifact and use --from.",
        )
    return RunAddress(api_url=api, repository=place.repository, run=run)
