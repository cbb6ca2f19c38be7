"""Fetch artifacts of finished runs from GitHub, as the zip archives that GitHub makes of them.

Endpoints: GitHub REST API, version 2022-11-28, "List workflow run artifacts" and "Download an
artifact". The second one redirects to a store on another host, with a signature in the address. The
token is not sent there.
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
    """Retries that ignore the store's `Retry-After`, because a person is waiting."""

    def wait_after(self, response: BaseHTTPResponse | None, left: float) -> float:  # noqa: ARG002 - see above
        """Return the same wait as after any fault."""
        return super().wait_after(None, left)


class _Store(GitHubConnection):
    """A connection to GitHub's artifact store, without login and without redirects."""

    followed = frozenset()

    def __init__(self, url: str, policy: RetryPolicy, *, encrypted: bool) -> None:
        self._schemes = {"https"} if encrypted else {"https", "http"}
        super().__init__("the store", url, policy)
        scheme, host, _ = self.origin
        self.name = f"{scheme}://{host}"

    def check_address(self, url: str) -> None:
        """Accept plain http only if the API uses it too: an Enterprise server may lack TLS."""
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
        """Return the retries for one download."""
        return _StoreRetries(self.policy, ends_at, repeatable=ask.repeatable)

    def transfer_seconds(self, size_bytes: int) -> float:  # noqa: ARG002 - nobody knows it before
        """Return the time limit of a download, whose real size is unknown before."""
        return DOWNLOAD_SECONDS

    def not_given(self, answer: HttpAnswer) -> PublishError:
        """Return the error for a status other than 200."""
        return PublishError(
            f"{self.name} refused the download ({answer.status})",
            hint="Try again: its address is valid for a minute.",
        )

    def too_large(self, max_bytes: int) -> PublishError:  # noqa: ARG002 - it is always the same
        """Return the error for more bytes than an artifact may have."""
        return _too_large()

    def unreached(self, error: Exception) -> GateError:
        """Return the error for a connection that failed, or ended before the archive did."""
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

    Without `name` this is the artifact of the gate `gate_id`, or the run's only artifact. Every
    failure is a `PublishError`, and the content of `sink` is then useless.
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
    """Return the names of all gates' artifacts of a run: `repro-gate` and `repro-gate-…`.

    If the run has only one artifact, it counts whatever its name. Every failure is a
    `PublishError`.
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
    """Return the newest failed runs of a workflow, newest first; `most` is at most 100.

    `workflow` is the name, the file's name or the number. Every failure is a `PublishError`.
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
    # The only gate of a workflow may have an id although its workflow uploads plain `repro-gate`.
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
    # A re-run has one artifact for each attempt, and the newest counts.
    return max(chosen, key=lambda artifact: artifact.id)


def _download(url: str, sink: BinaryIO, policy: RetryPolicy, *, encrypted: bool) -> None:
    def take(pieces: Iterator[bytes]) -> None:
        # Called again for each retry, so drop what an earlier try has written.
        sink.seek(0)
        sink.truncate()
        sink.writelines(pieces)

    # A separate connection, so that nothing of the token can be in it.
    with _Store(url, policy, encrypted=encrypted) as store:
        store.receive(HttpRequest(method="GET", url=url), MAX_ARTIFACT_BYTES, take, exactly=False)


def _too_large() -> PublishError:
    return PublishError(
        f"the artifact is larger than {MAX_ARTIFACT_BYTES // 1024**3} GiB",
        hint="Download it with a browser, unpack it, and name the folder with --from.",
    )
