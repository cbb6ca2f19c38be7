"""The same lines in S3, in a registry and on a branch."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

import pytest
from each_row import each_row
from fake_github import FakeGitHub
from git_workshop import Repository
from github_client import AT_ONCE
from history_table import FIRST, NOW, line
from oci_double import OciDouble
from s3_server import LOGIN, s3_server

from gate.errors import GateError, PublishError, SettingsError
from gate.fleet.remote_stores import BranchStore, RegistryStore, S3Store, opened_store
from gate.fleet.store import HistoryStore
from gate.fleet.stores import FolderStore, append, compact, mirror
from gate.publishing.history_branch import HistoryBranch
from gate.system.files.files import LocalFiles
from gate.system.git.repository import GitRepository
from gate.verdict.history_lines import HISTORY_BRANCH

START = date(2000, 1, 1)
FILES = LocalFiles()
THREE = [line(FIRST + timedelta(days=days), days) for days in (0, 0, 5)]


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Store]:
    pytest.importorskip("boto3")
    with s3_server(tmp_path) as url:
        for name, value in {**LOGIN, "AWS_ENDPOINT_URL": url}.items():
            monkeypatch.setenv(name, value)
        yield S3Store("s3://data/team/history/")


@pytest.fixture
def registry() -> Iterator[RegistryStore]:
    with OciDouble() as server:
        yield RegistryStore(f"oci://{server.address}/team/history", {}, FILES, AT_ONCE)


def kept(store: HistoryStore) -> dict[str, bytes]:
    return {name: store.read(name) for name in store.names(START)}


def told(store: HistoryStore) -> None:
    """Lines are kept once, listed from a day on, and copied."""
    names = [append(store, one) for one in (*THREE, THREE[0])]
    assert list(store.names(START)) == sorted(set(names))
    assert list(store.names(FIRST.date() + timedelta(days=1))) == [names[2]]
    assert all(data.count(b"\n") == 1 for data in kept(store).values())


def test_s3_keeps_lists_and_joins_lines(s3: S3Store, tmp_path: Path) -> None:
    told(s3)
    append(s3, line(FIRST + timedelta(seconds=1), 9))
    assert compact(s3, START, NOW.date()) == 1
    assert len(kept(s3)) == 2
    copies = FolderStore(tmp_path / "copies", FILES)
    assert mirror(s3, START, copies) == 2
    assert kept(copies) == kept(s3)


def test_s3_of_another_bucket_is_one_error_without_a_secret(s3: S3Store) -> None:
    del s3
    with pytest.raises(PublishError, match=r"s3://elsewhere/x: .*bucket") as caught:
        append(S3Store("s3://elsewhere/x"), THREE[0])
    assert "AWS_ENDPOINT_URL" in caught.value.hint
    assert "the-secret" not in str(caught.value)


def test_a_registry_keeps_and_lists_lines(registry: RegistryStore, tmp_path: Path) -> None:
    told(registry)
    copies = FolderStore(tmp_path / "copies", FILES)
    assert mirror(registry, START, copies) == 2
    assert kept(copies) == kept(registry)
    append(registry, line(FIRST + timedelta(seconds=1), 9))
    with pytest.raises(SettingsError, match="can be neither joined nor removed"):
        compact(registry, START, NOW.date())


def test_a_registry_that_gives_other_bytes_is_refused() -> None:
    with OciDouble() as server:
        store = RegistryStore(f"oci://{server.address}/team/history", {}, FILES, AT_ONCE)
        name = append(store, THREE[0])
        for digest, content in server.blobs.items():
            server.blobs[digest] = content.replace(b"reproduced", b"REPRODUCED")
        with pytest.raises(PublishError, match="gave other bytes than"):
            store.read(name)


def test_a_branch_is_written_by_the_api_and_read_in_a_clone(
    github: FakeGitHub, tmp_path: Path
) -> None:
    clone = Repository(tmp_path / "clone")
    today = NOW.date()
    branch = HistoryBranch(
        api_url=github.api_url, repository="o/model", token=github.token, policy=AT_ONCE
    )
    store = BranchStore(GitRepository(clone.path), branch, today)
    names = [append(store, one) for one in (*THREE, THREE[0])]
    with pytest.raises(GateError, match="this clone has no branch") as caught:
        next(store.names(FIRST.date()))
    assert "git fetch origin" in caught.value.hint
    for path, content in github.branches.files(HISTORY_BRANCH).items():
        clone.write(path, content)
    made = clone.commit()
    clone.git("update-ref", f"refs/remotes/origin/{HISTORY_BRANCH}", made)
    found = {name: store.read(name) for name in store.names(FIRST.date())}
    assert sorted(found) == sorted(set(names))
    with pytest.raises(SettingsError, match="needs GITHUB_REPOSITORY and GITHUB_TOKEN"):
        append(BranchStore(GitRepository(clone.path), None, today), THREE[0])


@each_row(
    ("place", "words"),
    [
        ("s3://", "names no bucket"),
        ("s3://Bucket/x", "names no bucket"),
        ("oci://registry", "must be a registry"),
        ("ftp://host/x", "is not a place for a history"),
        ("branch", "is not a place for a history"),
    ],
)
def test_what_is_no_place_is_refused(place: str, words: str) -> None:
    with pytest.raises(GateError, match=words):
        opened_store(place, {}, FILES)
