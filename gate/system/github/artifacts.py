"""The artifact of a finished run on GitHub, as the zip archive that GitHub makes of it.

Endpoints: GitHub REST API, version 2022-11-28, "List workflow run artifacts" and "Download an
artifact". The second answers with a redirect to a store of another host, with a signature in the
address: the token does not go there.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final
from urllib.parse import urlsplit

import requests
from pydantic import BaseModel, TypeAdapter
from requests.adapters import HTTPAdapter
from urllib3 import Retry
from urllib3.exceptions import HTTPError

from gate.errors import DocumentError, PublishError
from gate.system.files.reading import open_regular
from gate.system.gate_names import DEFAULT_GATE, artifact_name
from gate.system.github.api import ARTIFACT_REFUSALS, PIECE_BYTES, GitHubApi, too_slow, unreached
from gate.system.github.records import MAX_ARTIFACT_BYTES, RunAddress
from gate.system.http import GITHUB_POLICY, RETRIES, BodyLimits, RetryPolicy, bounded_pieces
from gate.text.untrusted_text import plain_text

MEMBER_PIECE_BYTES: Final = 1024 * 1024
# whoever wrote another method did not use what GitHub uses
METHODS: Final = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_BROKEN: Final = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    EOFError,
    # a directory that names a place before the file's beginning
    OSError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    UnicodeDecodeError,
    ValueError,
)


def zip_member(path: Path, name: str, shown: str, *, max_archive: int, max_bytes: int) -> bytes:
    """The content of the one member called `name`, in whatever folder of the archive it lies.

    At most `max_bytes` of it are unpacked, whatever the archive says (CWE-409), and its path leads
    nowhere, since nothing is written (CWE-22). Raises `DocumentError` for a broken archive, and for
    one with no such member or more than one.
    """
    with open_regular(path, max_archive) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                found = [
                    member
                    for member in archive.infolist()
                    if PurePosixPath(member.filename).name == name and not member.is_dir()
                ]
                # of two, readers could take this one or that one
                if len(found) != 1:
                    raise _wrong_number(shown, name, len(found))
                return _content(archive, found[0], shown, max_bytes)
        except _BROKEN as error:
            raise DocumentError(
                f"{shown}: not a readable zip archive",
                hint="Download the artifact again.",
            ) from error


def _content(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, shown: str, max_bytes: int
) -> bytes:
    if member.compress_type not in METHODS:
        raise DocumentError(
            f"{shown}: compressed in a way that GitHub does not use",
            hint="Unpack it, and name the folder with --from.",
        )
    with archive.open(member) as opened:
        content = bytearray()
        while piece := opened.read(MEMBER_PIECE_BYTES):
            content += piece
            if len(content) > max_bytes:
                raise DocumentError(
                    f"{shown}: the baseline in it is larger than {max_bytes // 1024**2} MiB",
                    hint="No gate proposes such a baseline. Find out where this file comes from.",
                )
    return bytes(content)


def _wrong_number(shown: str, name: str, number: int) -> DocumentError:
    if number:
        return DocumentError(
            f"{shown}: holds {number} files called {name}",
            hint="Unpack it, and name the right one with --from.",
        )
    return DocumentError(
        f"{shown}: holds no {name}",
        hint="No entry is proposed for a run that was not repeatable, not finite or not "
        "committed. Look at the run's summary; another artifact is named with --artifact.",
    )


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


class _Nobody(requests.auth.AuthBase):
    """No credential at all; being an explicit auth, it keeps .netrc out."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        return request


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
        url = f"{api.repository_url}/actions/runs/{address.run}/artifacts?per_page=100"
        chosen = _chosen(api.send("GET", url).read_as(_LISTED).artifacts, name, gate_id)
        if chosen.size_in_bytes > MAX_ARTIFACT_BYTES:
            raise _too_large()
        place = api.redirect_of(f"{api.repository_url}/actions/artifacts/{chosen.id}/zip")
    _download(place, sink, policy, encrypted=api.base.startswith("https:"))
    return chosen.name


def _chosen(artifacts: tuple[_Artifact, ...], name: str, gate_id: str) -> _Artifact:
    kept = [artifact for artifact in artifacts if not artifact.expired]
    if not kept:
        what = "its artifacts have expired" if artifacts else "it has no artifact"
        raise PublishError(
            f"nothing to download from this run: {what}",
            hint="The workflow uploads repro-gate-out/ with actions/upload-artifact; "
            "retention-days says for how long. Run the job again.",
        )
    # a gate with an id of its own may be the only one of its workflow, which then says `repro-gate`
    usual = (artifact_name(gate_id), artifact_name(DEFAULT_GATE))
    names = (name,) if name else usual
    found = ([artifact for artifact in kept if artifact.name == known] for known in names)
    wanted = next(filter(None, found), [])
    if not wanted and not name and len(kept) == 1:
        return kept[0]
    if not wanted:
        raise PublishError(
            f"this run has no artifact {plain_text(names[0])!r}",
            hint="Name the one that holds proposed-baseline.json with --artifact.",
            details=tuple(plain_text(artifact.name) for artifact in kept[:NAMES_SHOWN]),
        )
    # a run that was repeated has one for each attempt: the newest counts
    return max(wanted, key=lambda artifact: artifact.id)


def _download(url: str, sink: BinaryIO, policy: RetryPolicy, *, encrypted: bool) -> None:
    parts = urlsplit(url)
    if not parts.hostname or parts.scheme not in ({"https"} if encrypted else {"https", "http"}):
        raise PublishError(
            "GitHub named no usable address for the artifact",
            hint="Check GITHUB_API_URL and the proxy.",
        )
    host = f"{parts.scheme}://{parts.hostname}"
    # a time that the store asks for is not waited for: whoever called is sitting there
    retry = Retry(
        total=RETRIES,
        backoff_factor=policy.backoff_seconds,
        status_forcelist=range(500, 600),
        raise_on_status=False,
        respect_retry_after_header=False,
    )
    # a session of its own: nothing of the token's can be in it
    with requests.Session() as session:
        session.auth = _Nobody()
        session.headers["User-Agent"] = "repro-gate"
        session.mount(f"{parts.scheme}://", HTTPAdapter(max_retries=retry))
        try:
            with session.get(
                url, stream=True, timeout=policy.timeout_seconds, allow_redirects=False
            ) as answer:
                _copy(answer, sink, policy, host)
        except HTTPError as error:
            raise PublishError(
                f"the download from {host} was cut off", hint="Try again."
            ) from error
        except requests.RequestException as error:
            raise unreached(error, host, policy.timeout_seconds) from error


def _copy(answer: requests.Response, sink: BinaryIO, policy: RetryPolicy, host: str) -> None:
    if answer.status_code != requests.codes.ok:
        raise PublishError(
            f"{host} refused the download ({answer.status_code})",
            hint="Try again: its address is valid for a minute.",
        )
    limits = BodyLimits(
        piece_bytes=PIECE_BYTES,
        max_bytes=MAX_ARTIFACT_BYTES,
        seconds=DOWNLOAD_SECONDS,
        monotonic=policy.monotonic,
        too_large=_too_large,
        too_slow=lambda: too_slow(host, DOWNLOAD_SECONDS),
        # as it was sent: an archive that is compressed once more could unpack to any size
        decoded=False,
    )
    taken = 0
    for piece in bounded_pieces(answer.raw, limits):
        sink.write(piece)
        taken += len(piece)
    # urllib3 itself counts only where it is asked to read a known number of bytes
    told = answer.headers.get("Content-Length", "")
    if told.isdigit() and int(told) != taken:
        raise PublishError(f"the download from {host} was cut off", hint="Try again.")


def _too_large() -> PublishError:
    return PublishError(
        f"the artifact is larger than {MAX_ARTIFACT_BYTES // 1024**3} GiB",
        hint="Download it with a browser, unpack it, and name the folder with --from.",
    )
