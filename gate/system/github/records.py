"""Records about pull requests and workflow runs on GitHub, and parsing of a run's number or URL.

A token is sent to the API of the parsed repository. So a URL is accepted only if it names the job's
own repository or a remote of this clone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from gate.errors import SettingsError


def api_address(variables: Mapping[str, str]) -> str:
    """Return the address of GitHub's API as the runner gives it, or github.com's."""
    return variables.get("GITHUB_API_URL", "https://api.github.com").rstrip("/")


@dataclass(frozen=True, kw_only=True, slots=True)
class PullRequest:
    """The pull request that an event is about; both commits are full hashes.

    `base_branch` is the branch to merge into. A verdict is about this branch and the head commit.
    """

    number: int
    head_sha: str
    base_sha: str
    base_branch: str
    from_fork: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOrigin:
    """What started a finished workflow; a `workflow_run` event does not name the pull request."""

    head_sha: str
    head_repository: str
    head_owner: str
    head_branch: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RunAddress:
    """A workflow run by its number, its repository (owner/name), and the API to ask about it."""

    api_url: str
    repository: str
    run: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Comment:
    """A comment on a pull request; `author` is empty if the account was deleted."""

    comment_id: int
    author: str
    body: str
    url: str


class StatusState(StrEnum):
    """The state of a commit status; a required status passes only with `success`."""

    SUCCESS = "success"
    FAILURE = "failure"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitStatus:
    """A status of a commit (a full hash); of each context, the newest status counts."""

    commit: str
    state: StatusState
    context: str
    description: str
    target_url: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenSeen:
    """The API's answers about a token, as status codes; 0 if nothing was asked.

    `comment_status` answers a comment without a text, and `contents_status` a branch without a
    name. No server can write either. If there was no answer, `problem` says why and `fix` what to
    do.
    """

    repository_status: int = 0
    comment_status: int = 0
    contents_status: int = 0
    problem: str = ""
    fix: str = ""


# The artifact with a proposal also contains the package with the checkpoint.
MAX_ARTIFACT_BYTES: Final = 4 * 1024**3


class Comments(Protocol):
    """The comments of one pull request."""

    def author(self) -> str:
        """Return the account name under which this token comments."""
        ...

    def listed(self) -> Iterable[Comment]:
        """Yield all comments in the order of creation; pages are fetched only as needed."""
        ...

    def create(self, body: str) -> Comment:
        """Write a new comment."""
        ...

    def update(self, comment_id: int, body: str) -> Comment:
        """Replace a comment's text."""
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
# GitHub Enterprise Cloud with data residency has its API on a separate host.
RESIDENT_SUFFIX: Final = ".ghe.com"


@dataclass(frozen=True, slots=True)
class _Place:
    host: str
    repository: str

    def same(self, other: _Place) -> bool:
        """Compare two places; GitHub's names do not depend on case."""
        return (self.host.lower(), self.repository.lower()) == (
            other.host.lower(),
            other.repository.lower(),
        )


def run_address(text: str, remotes: Mapping[str, str], variables: Mapping[str, str]) -> RunAddress:
    """Return the run that a number or a URL names; `remotes` maps the clone's remotes to URLs.

    Raises `SettingsError` for any other text. Also for a repository that is neither the job's nor a
    remote of this clone, and for a server whose API only GITHUB_API_URL could name.
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
    """Return the repository of a bare run number: the job's, `origin`, or the only remote."""
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
    """Return the repository of the job that runs this process, or None outside a job."""
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
