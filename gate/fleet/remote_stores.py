"""Remote stores of a history (an S3 prefix, a registry, a branch), and choosing one by its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

from gate.errors import CommitError, PublishError, RepositoryError, SettingsError
from gate.fleet.store import HistoryStore
from gate.fleet.stores import LINES, MAX_FILE_BYTES, NAME, FolderStore, branch_path
from gate.publishing.history_branch import HistoryBranch
from gate.publishing.registry import (
    EMPTY,
    EMPTY_TYPE,
    MAX_MANIFEST_BYTES,
    descriptor,
    read_manifest,
    registry_client,
    registry_digest,
)
from gate.publishing.registry_api import MANIFEST_TYPE, RegistryClient
from gate.settings.delivery_sections import OCI, S3, check_repository
from gate.system.files.port import Files
from gate.system.git.repository import Git
from gate.system.github.records import api_address
from gate.system.http import POLICY, RetryPolicy
from gate.text.json_text import canonical_json
from gate.text.untrusted_text import safe_line
from gate.verdict.history_lines import HISTORY_BRANCH

BRANCH: Final = "branch"
SECONDS: Final = 20
TRIES: Final = 3
REMOVED_AT_ONCE: Final = 1000
MAX_DAY_FILES: Final = 100_000
HISTORY_TYPE: Final = "application/vnd.repro-gate.history.v1"
HISTORY_LAYER: Final = "application/vnd.repro-gate.history.v1+jsonl"
TAG: Final = re.compile(r"history_([0-9]{4}-[0-9]{2}-[0-9]{2})_([A-Za-z0-9][A-Za-z0-9._-]{0,99})\Z")
BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z")
PREFIX: Final = re.compile(r"[A-Za-z0-9!_.*'()/-]{0,200}\Z")


class S3Client(Protocol):
    """The methods of boto3's S3 client that are used."""

    def put_object(self, **words: object) -> object:
        """Write an object."""
        ...

    def get_object(self, **words: object) -> Any:  # noqa: ANN401 - boto3 has no types
        """Read an object."""
        ...

    def get_paginator(self, name: str) -> Any:  # noqa: ANN401 - as above
        """List objects, page by page."""
        ...

    def delete_objects(self, **words: object) -> Any:  # noqa: ANN401 - as above
        """Remove objects."""
        ...


def s3_client() -> S3Client:
    """Return a client of boto3, which reads credentials and endpoint from its own variables."""
    try:
        import boto3  # noqa: PLC0415 - an extra, and slow to import
        from botocore.config import Config  # noqa: PLC0415 - as above
    except ImportError as error:
        raise SettingsError(
            "a history in S3 needs the package boto3",
            hint="Install it beside the gate: `pip install 'boto3>=1.40'`.",
        ) from error
    limits = Config(
        connect_timeout=SECONDS, read_timeout=SECONDS, retries={"total_max_attempts": TRIES}
    )
    try:
        client: S3Client = boto3.client("s3", config=limits)
    except Exception as error:
        raise PublishError(
            f"boto3 cannot be set up: {safe_line(str(error))}",
            hint="Check AWS_REGION, AWS_PROFILE and AWS_ENDPOINT_URL.",
        ) from error
    return client


class S3Store:
    """The `HistoryStore` in a bucket: objects below a prefix."""

    def __init__(self, place: str, client: Callable[[], S3Client] = s3_client) -> None:
        bucket, _, prefix = place.removeprefix(S3).partition("/")
        if not BUCKET.match(bucket) or not PREFIX.match(prefix):
            raise SettingsError(
                f"{safe_line(place)!r} names no bucket",
                hint="Write s3://BUCKET/PREFIX, for example s3://ml-runs/repro-gate.",
            )
        self.shown = f"{S3}{bucket}/{prefix}".rstrip("/")
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._make = client
        self._made: S3Client | None = None

    def write(self, name: str, data: bytes) -> None:
        """Write an object; S3 stores all of it or nothing."""
        self._asked(lambda s3: s3.put_object(**self._at(name), Body=data))

    def names(self, since: date) -> Iterator[str]:
        """Yield the names from a day on, in order, fetching a thousand at a time."""
        where = {
            "Bucket": self._bucket,
            "Prefix": self._prefix,
            # S3 lists keys in order, so the listing can begin at a day.
            "StartAfter": f"{self._prefix}{since.isoformat()}",
        }
        pages = iter(self._asked(lambda s3: s3.get_paginator("list_objects_v2").paginate(**where)))
        while (page := self._asked(lambda _: next(pages, None))) is not None:
            for stored in page.get("Contents", ()):
                name = str(stored["Key"]).removeprefix(self._prefix)
                if NAME.match(name):
                    yield name

    def read(self, name: str) -> bytes:
        """Return an object's content."""

        def got(s3: S3Client) -> bytes:
            content: bytes = s3.get_object(**self._at(name))["Body"].read(MAX_FILE_BYTES + 1)
            return content

        content: bytes = self._asked(got)
        if len(content) > MAX_FILE_BYTES:
            raise PublishError(
                f"{self.shown}: {name} has more than {MAX_FILE_BYTES:,} bytes",
                hint="No history writes such a file: remove it, or name another store.",
            )
        return content

    def remove(self, names: Iterable[str]) -> None:
        """Delete objects; raises `PublishError` if one cannot be deleted."""
        left = iter(names)
        while some := list(islice(left, REMOVED_AT_ONCE)):
            keys = [{"Key": f"{self._prefix}{name}"} for name in some]
            objects = {"Bucket": self._bucket, "Delete": {"Objects": keys, "Quiet": True}}
            answer = self._asked(partial(_delete, objects))
            if answer.get("Errors"):
                raise PublishError(
                    f"{self.shown}: {len(answer['Errors'])} objects could not be deleted",
                    hint="Allow s3:DeleteObject: nothing is lost, and the same call goes on.",
                )

    def _at(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": f"{self._prefix}{name}"}

    def _asked(self, ask: Callable[[S3Client], Any]) -> Any:  # noqa: ANN401 - as above
        if self._made is None:
            self._made = self._make()
        try:
            return ask(self._made)
        except Exception as error:
            # botocore's errors have no common base class, and none of them quotes a secret
            raise PublishError(
                f"{self.shown}: {safe_line(str(error), limit=200)}",
                hint="Check bucket, credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or a "
                "role) and AWS_ENDPOINT_URL.",
            ) from error


def _delete(objects: Mapping[str, object], s3: S3Client) -> Any:  # noqa: ANN401 - as above
    return s3.delete_objects(**objects)


class RegistryStore:
    """The `HistoryStore` in a registry: tags `history_DAY_NAME`, each with one layer of lines."""

    def __init__(
        self, place: str, variables: Mapping[str, str], files: Files, policy: RetryPolicy = POLICY
    ) -> None:
        try:
            self._place = check_repository(place.removeprefix(OCI))
        except ValueError as error:
            raise SettingsError(
                f"{safe_line(place)!r} {error}",
                hint="Give oci://registry.example.org/team/history.",
            ) from error
        self.shown = f"{OCI}{self._place}"
        self._variables, self._files, self._policy = variables, files, policy

    def write(self, name: str, data: bytes) -> None:
        """Push lines; the tag comes last, so that it never names an incomplete push."""
        manifest = canonical_json(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPE,
                "artifactType": HISTORY_TYPE,
                "config": descriptor(EMPTY, EMPTY_TYPE, data="e30="),
                "layers": [descriptor(data, HISTORY_LAYER)],
            }
        )
        with self._client() as client:
            client.put_bytes(EMPTY)
            client.put_bytes(data)
            client.put_manifest(registry_digest(manifest), manifest, MANIFEST_TYPE)
            client.put_manifest(_tag(name), manifest, MANIFEST_TYPE)

    def names(self, since: date) -> Iterator[str]:
        """Return the names from a day on, in order."""
        with self._client() as client:
            tags = client.tags()
        tags_found = filter(None, map(TAG.match, sorted(tags)))
        return (f"{tag[1]}/{tag[2]}.jsonl" for tag in tags_found if tag[1] >= since.isoformat())

    def read(self, name: str) -> bytes:
        """Return the lines under a tag, checked against their digest."""
        with self._client() as client:
            content = client.manifest(_tag(name), max_bytes=MAX_MANIFEST_BYTES)
            if content is None:
                raise client.wrong("lists a tag that it does not have")
            layers = read_manifest(content).layers
            if len(layers) != 1 or layers[0].size > MAX_FILE_BYTES:
                raise client.wrong(f"has no lines of a history under {_tag(name)}")
            lines = client.receive(layers[0].digest, layers[0].size, b"".join)
            if registry_digest(lines) != layers[0].digest:
                raise client.wrong(f"gave other bytes than {layers[0].digest[:19]}… names")
        return lines

    def remove(self, names: Iterable[str]) -> None:
        """Refuse: a registry need not support deleting, and tags may share what is deleted."""
        del names
        raise SettingsError(
            "the files of a registry can be neither joined nor removed",
            hint="Keep a large history in a folder or in S3.",
        )

    def _client(self) -> RegistryClient:
        return registry_client(self._place, self._variables, self._files, self._policy)


def _tag(name: str) -> str:
    day, _, rest = name.removesuffix(".jsonl").partition("/")
    return f"history_{day}_{rest}"


class BranchStore:
    """The `HistoryStore` on a branch: files below `lines/` on `repro-gate-history`.

    They are written through GitHub's API, and read in a clone that has fetched the branch.
    """

    shown = f"the branch {HISTORY_BRANCH}"

    def __init__(self, git: Git, branch: HistoryBranch | None, today: date) -> None:
        self._git, self._branch, self._today = git, branch, today
        self._day: dict[str, bytes] = {}

    def write(self, name: str, data: bytes) -> None:
        """Commit a file; the branch only moves forward."""
        if self._branch is None:
            raise SettingsError(
                "writing to the branch needs GITHUB_REPOSITORY and GITHUB_TOKEN",
                hint="Run this in a job of GitHub Actions that has `contents: write`.",
            )
        path = branch_path(name)
        self._branch.change(HISTORY_BRANCH, path, f"{path}: a line", lambda _: {path: data})

    def names(self, since: date) -> Iterator[str]:
        """Yield the names from a day on, in order."""
        try:
            commit = self._git.resolve(f"refs/remotes/origin/{HISTORY_BRANCH}")
        except RepositoryError as error:
            raise RepositoryError(
                f"this clone has no branch {HISTORY_BRANCH}",
                hint=f"Fetch it: `git fetch origin {HISTORY_BRANCH}:refs/remotes/origin/"
                f"{HISTORY_BRANCH}`.",
            ) from error
        day = since
        # One day more, because the clock of another machine may be ahead.
        while day <= self._today + timedelta(days=1):
            try:
                files = self._git.read_folder(
                    commit,
                    f"{LINES}/{day.isoformat()}",
                    max_files=MAX_DAY_FILES,
                    max_bytes=MAX_FILE_BYTES,
                )
            except CommitError as error:
                raise PublishError(f"{self.shown}: {error.message}", hint=error.hint) from error
            self._day = {f"{day.isoformat()}/{name}": data for name, data in (files or {}).items()}
            yield from (name for name in sorted(self._day) if NAME.match(name))
            day += timedelta(days=1)

    def read(self, name: str) -> bytes:
        """Return a file of the day that `names` is at, whose files are all in memory."""
        return self._day[name]

    def remove(self, names: Iterable[str]) -> None:
        """Refuse: a branch keeps everything that it ever had in its commits."""
        del names
        raise SettingsError(
            "the files of a branch can be neither joined nor removed",
            hint="Keep a large history in a folder or in S3.",
        )


def opened_store(
    place: str, variables: Mapping[str, str], files: Files, git: Git | None = None
) -> HistoryStore:
    """Return the store that a place names: `branch`, s3://…, oci://… or a folder."""
    if place == BRANCH and git is not None:
        return BranchStore(git, _github(variables), datetime.now(UTC).date())
    if place.startswith(S3):
        return S3Store(place)
    if place.startswith(OCI):
        return RegistryStore(place, variables, files)
    if "://" in place or place == BRANCH:
        raise SettingsError(
            f"{safe_line(place)!r} is not a place for a history",
            hint="Give a folder, s3://BUCKET/PREFIX, oci://registry.example.org/team/history, or "
            "`branch` in a clone.",
        )
    return FolderStore(Path(place), files)


def _github(variables: Mapping[str, str]) -> HistoryBranch | None:
    repository, token = (variables.get(name, "") for name in ("GITHUB_REPOSITORY", "GITHUB_TOKEN"))
    if not repository or not token:
        return None
    return HistoryBranch(api_url=api_address(variables), repository=repository, token=token)
