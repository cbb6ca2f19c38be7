"""The artifacts of workflow runs, as the server that plays GitHub keeps them.

They lie in a store under another host name: the API only says where, as GitHub's does.
"""

from __future__ import annotations

import io
import re
import zipfile
from dataclasses import dataclass, field

LIST_PATH = re.compile(r"/repos/[^/]+/[^/]+/actions/runs/(?P<run>\d+)/artifacts")
WORKFLOWS_PATH = re.compile(r"/repos/[^/]+/[^/]+/actions/workflows")
RUNS_PATH = re.compile(r"/repos/[^/]+/[^/]+/actions/workflows/(?P<id>\d+)/runs")
ZIP_PATH = re.compile(r"/repos/[^/]+/[^/]+/actions/artifacts/(?P<id>\d+)/zip")
STORE_PATH = re.compile(r"/store/(?P<id>\d+)")
# the same machine under another name, so that clients see a different host
STORE_HOST = "localhost"


@dataclass(kw_only=True)
class StoredArtifact:
    """An artifact on the server; `size_in_bytes` is the size that the list of artifacts claims."""

    run: int
    name: str
    archive: bytes
    expired: bool = False
    size_in_bytes: int | None = None


@dataclass
class Artifacts:
    """All artifacts; `store` is the address to which the API redirects downloads."""

    kept: dict[int, StoredArtifact] = field(default_factory=dict)
    store: str = "http://{store_host}:{port}/store/{id}"
    store_status: int = 200
    # the runs that failed, by the file of their workflow
    failed: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def add(self, artifact: StoredArtifact) -> None:
        """Add an artifact with the next number."""
        self.kept[len(self.kept) + 1] = artifact

    def answer(self, path: str, port: str) -> tuple[int, object, dict[str, str]] | None:
        """Return the API's answer to a GET, or None if the path is not about artifacts."""
        listed, one = LIST_PATH.fullmatch(path), ZIP_PATH.fullmatch(path)
        if listed:
            mine = [
                {
                    "id": number,
                    "name": one.name,
                    "expired": one.expired,
                    "size_in_bytes": one.size_in_bytes or len(one.archive),
                }
                for number, one in self.kept.items()
                if one.run == int(listed["run"])
            ]
            if not mine and not any(one.run == int(listed["run"]) for one in self.kept.values()):
                return 404, {"message": "Not Found"}, {}
            return 200, {"total_count": len(mine), "artifacts": mine}, {}
        if WORKFLOWS_PATH.fullmatch(path):
            known = [
                {"id": number, "name": file, "path": file}
                for number, file in enumerate(self.failed, 1)
            ]
            return 200, {"total_count": len(known), "workflows": known}, {}
        if runs := RUNS_PATH.fullmatch(path):
            failed = list(self.failed.values())[int(runs["id"]) - 1]
            told = [{"id": number} for number in failed]
            return 200, {"total_count": len(told), "workflow_runs": told}, {}
        if one:
            place = self.store.format(store_host=STORE_HOST, port=port, id=one["id"])
            return 302, {}, {"Location": place}
        return None

    def stored(self, host: str, path: str) -> tuple[int, bytes] | None:
        """Return the store's answer, or None if the request is not for the store."""
        found = STORE_PATH.fullmatch(path)
        if found is None or host.partition(":")[0] != STORE_HOST:
            return None
        return self.store_status, self.kept[int(found["id"])].archive


def archive_of(members: dict[str, bytes]) -> bytes:
    """Return a zip archive, as actions/upload-artifact makes it."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return made.getvalue()
