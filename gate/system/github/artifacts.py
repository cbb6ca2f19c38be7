"""The artifact of a finished run on GitHub, as the zip archive that GitHub makes of it.

Endpoints: GitHub REST API, version 2022-11-28, "List workflow run artifacts" and "Download an
artifact". The second answers with a redirect to a store of another host, with a signature in the
address: the token does not go there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import BinaryIO, Final

from pydantic import BaseModel, TypeAdapter
from urllib3 import BaseHTTPResponse

from gate.errors import GateError, PublishError
from gate.system.gate_names import DEFAULT_GATE, artifact_name
from gate.system.github.api import ARTIFACT_REFUSALS, GitHubApi, GitHubConnection, read_as
from gate.system.github.records import MAX_ARTIFACT_BYTES, RunAddress
from gate.system.http import (
    GITHUB_POLICY,
    HttpAnswer,
    HttpRequest,
    Retries,
    RetryPolicy,
    Trouble,
    origin_of,
    trouble_of,
)
from gate.text.untrusted_text import plain_text

DOWNLOAD_SECONDS: Final = 1800.0
NAMES_SHOWN: Final = 10


class _Artifact(BaseModel):
    id: int
    name: str
    size_in_bytes: int
    expired: bool


class _Artifacts(BaseModel):
    artifacts: tuple[_Artifact, ...]


_LISTED = TypeAdapter(_Artifacts)


class _StoreRetries(Retries):
    """A time that the store asks for is not waited for: the caller is a person who waits."""

    def wait_after(self, response: BaseHTTPResponse | None, left: float) -> float:  # noqa: ARG002 - see above
        """As after any fault."""
        return super().wait_after(None, left)


class _Store(GitHubConnection):
    """The store of GitHub's artifacts: gets no login, and redirects nobody."""

    followed = frozenset()

    def __init__(self, url: str, policy: RetryPolicy, *, encrypted: bool) -> None:
        self._schemes = {"https"} if encrypted else {"https", "http"}
        super().__init__("the store", url, policy)
        scheme, host, _ = self.origin
        self.name = f"{scheme}://{host}"

    def check_address(self, url: str) -> None:
        """An Enterprise server that has no certificate may name a store that has none."""
        try:
            scheme, host, _ = origin_of(url)
        except ValueError:
            scheme = host = ""
        if not host or scheme not in self._schemes:
            raise PublishError(
                "GitHub named no usable address for the artifact",
                hint="Check GITHUB_API_URL and the proxy.",
            )

    def retries(self, ask: HttpRequest, ends_at: float) -> Retries:
        """Of one download."""
        return _StoreRetries(self.policy, ends_at, repeatable=ask.repeatable)

    def transfer_seconds(self, size_bytes: int) -> float:  # noqa: ARG002 - nobody knows it before
        """The longest that a download may take."""
        return DOWNLOAD_SECONDS

    def not_given(self, answer: HttpAnswer) -> PublishError:
        """Another status than 200."""
        return PublishError(
            f"{self.name} refused the download ({answer.status})",
            hint="Try again: its address is valid for a minute.",
        )

    def too_large(self, max_bytes: int) -> PublishError:  # noqa: ARG002 - it is always the same
        """More than an artifact may have."""
        return _too_large()

    def unreached(self, error: Exception) -> GateError:
        """A connection that failed, or ended before the archive did."""
        if trouble_of(error) is Trouble.CUT:
            return PublishError(f"the download from {self.name} was cut off", hint="Try again.")
        return super().unreached(error)


def fetch_artifact(
    sink: BinaryIO,
    address: RunAddress,
    token: str,
    *,
    name: str = "",
    gate_id: str = DEFAULT_GATE,
    policy: RetryPolicy = GITHUB_POLICY,
) -> str:
    """Write an artifact's archive to `sink`, at most 4 GiB, and return the artifact's name.

    Without a `name` it is the gate's own, `repro-gate`, or the only one that the run has. Every
    failure is a `PublishError`; what `sink` holds then is of no use.
    """
    with GitHubApi(address.api_url, address.repository, token, policy, ARTIFACT_REFUSALS) as api:
        chosen = _chosen(_listed(api, address.run), name, gate_id)
        if chosen.size_in_bytes > MAX_ARTIFACT_BYTES:
            raise _too_large()
        place = api.redirect_of(f"{api.repository_url}/actions/artifacts/{chosen.id}/zip")
    _download(place, sink, policy, encrypted=api.base.startswith("https:"))
    return chosen.name


def gate_artifacts(
    address: RunAddress, token: str, *, policy: RetryPolicy = GITHUB_POLICY
) -> tuple[str, ...]:
    """The names of all artifacts of a run that a gate uploads: `repro-gate` and `repro-gate-…`.

    The only one that the run has counts under any name. Every failure is a `PublishError`.
    """
    with GitHubApi(address.api_url, address.repository, token, policy, ARTIFACT_REFUSALS) as api:
        kept = _kept(_listed(api, address.run))
    names = tuple(dict.fromkeys(artifact.name for artifact in kept))
    usual = artifact_name(DEFAULT_GATE)
    own = tuple(name for name in names if name == usual or name.startswith(f"{usual}-"))
    return own or (names if len(names) == 1 else ())


class _Workflow(BaseModel):
    id: int
    name: str
    path: str


class _Workflows(BaseModel):
    workflows: tuple[_Workflow, ...]


class _Run(BaseModel):
    id: int


class _Runs(BaseModel):
    workflow_runs: tuple[_Run, ...]


_WORKFLOWS = TypeAdapter(_Workflows)
_RUNS = TypeAdapter(_Runs)


def failed_runs(
    address: RunAddress,
    token: str,
    workflow: str,
    *,
    most: int,
    policy: RetryPolicy = GITHUB_POLICY,
) -> tuple[RunAddress, ...]:
    """The newest runs of a workflow that failed, newest first; `most` is 100 at most.

    `workflow` is its name, its file's name or its number. Every failure is a `PublishError`.
    """
    with GitHubApi(address.api_url, address.repository, token, policy, ARTIFACT_REFUSALS) as api:
        actions = f"{api.repository_url}/actions"
        known = read_as(api.send("GET", f"{actions}/workflows?per_page=100"), _WORKFLOWS).workflows
        failed = next(
            (
                run
                for run in known
                if workflow in {run.name, run.path, run.path.rpartition("/")[2], str(run.id)}
            ),
            None,
        )
        if failed is None:
            raise PublishError(
                f"this repository has no workflow {plain_text(workflow)!r}",
                hint="Name it as its page does, or by its file's name.",
                details=tuple(plain_text(f"{run.name} ({run.path})") for run in known)[
                    :NAMES_SHOWN
                ],
            )
        url = f"{actions}/workflows/{failed.id}/runs?status=failure&per_page={most}"
        runs = read_as(api.send("GET", url), _RUNS).workflow_runs
    return tuple(replace(address, run=str(run.id)) for run in runs[:most])


def _listed(api: GitHubApi, run: str) -> tuple[_Artifact, ...]:
    url = f"{api.repository_url}/actions/runs/{run}/artifacts?per_page=100"
    return read_as(api.send("GET", url), _LISTED).artifacts


def _kept(artifacts: tuple[_Artifact, ...]) -> list[_Artifact]:
    kept = [artifact for artifact in artifacts if not artifact.expired]
    if not kept:
        what = "its artifacts have expired" if artifacts else "it has no artifact"
        raise PublishError(
            f"nothing to download from this run: {what}",
            hint="The workflow uploads repro-gate-out/ with actions/upload-artifact; "
            "retention-days says for how long. Run the job again.",
        )
    return kept


def _chosen(artifacts: tuple[_Artifact, ...], name: str, gate_id: str) -> _Artifact:
    kept = _kept(artifacts)
    # a gate with an id of its own may be the only one of its workflow, which then says `repro-gate`
    usual = (artifact_name(gate_id), artifact_name(DEFAULT_GATE))
    names = (name,) if name else usual
    by_name = ([artifact for artifact in kept if artifact.name == known] for known in names)
    chosen = next(filter(None, by_name), [])
    if not chosen and not name and len(kept) == 1:
        return kept[0]
    if not chosen:
        raise PublishError(
            f"this run has no artifact {plain_text(names[0])!r}",
            hint="Name the one that holds proposed-baseline.json with --artifact.",
            details=tuple(plain_text(artifact.name) for artifact in kept[:NAMES_SHOWN]),
        )
    # a run that was repeated has one for each attempt: the newest counts
    return max(chosen, key=lambda artifact: artifact.id)


def _download(url: str, sink: BinaryIO, policy: RetryPolicy, *, encrypted: bool) -> None:
    def take(pieces: Iterator[bytes]) -> None:
        sink.seek(0)
        sink.truncate()
        sink.writelines(pieces)

    # a connection of its own: nothing of the token's can be in it
    with _Store(url, policy, encrypted=encrypted) as store:
        store.receive(HttpRequest(method="GET", url=url), MAX_ARTIFACT_BYTES, take, exactly=False)


def _too_large() -> PublishError:
    return PublishError(
        f"the artifact is larger than {MAX_ARTIFACT_BYTES // 1024**3} GiB",
        hint="Download it with a browser, unpack it, and name the folder with --from.",
    )
