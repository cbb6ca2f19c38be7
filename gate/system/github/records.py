"""A workflow run as a person names it: which API is asked, about which repository and run.

A token goes to that API, so an address from somewhere else is taken only where it is one of this
clone's own repositories.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gate.errors import SettingsError
from gate.system.github.pull_request_records import RunAddress

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
    if not any(place.same(one) for one in (*known.values(), *((here,) if here else ()))):
        raise SettingsError(
            f"--run: {place.host}/{place.repository} is no remote of this clone",
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
    found = REMOTE.fullmatch(url)
    return None if found is None else _Place(found[1], found[2])


def _address(place: _Place, run: str, variables: Mapping[str, str]) -> RunAddress:
    host = place.host.lower()
    told = variables.get("GITHUB_API_URL", "")
    if told:
        api = told
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
