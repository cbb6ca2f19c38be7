"""Real Git LFS with a remote that is a folder: objects of the clone, of the remote, of nowhere."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from data_bench import DataBench
from git_workshop import IDENTITY, Repository
from lfs_server import LfsServer

from gate.data.declared import FetchedData
from gate.errors import DataError
from gate.settings.data import DataSource

pytestmark = pytest.mark.skipif(shutil.which("git-lfs") is None, reason="git-lfs is not installed")
FIRST, SECOND = b"one" * 1000, b"two" * 1000


class LfsRepository(Repository):
    """A repository with two files of Git LFS, pushed to a bare one; then cloned without them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / "author")
        self.remote = root / "remote.git"
        self._run("init", "-q", "--bare", str(self.remote))
        self.git("lfs", "install", "--local")
        self.git("lfs", "track", "*.bin")
        self.git("remote", "add", "origin", self.remote.as_uri())
        self.write("data/1.bin", FIRST)
        self.write("data/2.bin", SECOND)
        self.commit()
        self.git("push", "-q", "origin", "main")

    def clone(self, path: Path) -> None:
        """As `actions/checkout` does it: pointers in the place of the files."""
        self._run("clone", "-q", self.remote.as_uri(), str(path))

    def pointers(self) -> dict[str, bytes]:
        names = ("data/1.bin", "data/2.bin")
        return {name: self.git("show", f"HEAD:{name}").encode() + b"\n" for name in names}

    def _run(self, *arguments: str) -> None:
        subprocess.run(
            ("git", *arguments),  # noqa: S607 - the PATH of the tests
            env={**IDENTITY, "GIT_LFS_SKIP_SMUDGE": "1"},
            capture_output=True,
            check=True,
        )


@pytest.fixture
def repository(bench: DataBench) -> LfsRepository:
    made = LfsRepository(bench.root)
    made.clone(bench.clone)
    return made


def fetched(bench: DataBench, repository: LfsRepository, *, lfs_config: bytes = b"") -> FetchedData:
    pointers = bench.lfs_pointers(repository.pointers())
    data = bench.data(lfs_config=lfs_config)
    (found,) = data.fetch(DataSource(lfs="*.bin"), pointers)
    return found


def refused(bench: DataBench, repository: LfsRepository) -> DataError:
    with pytest.raises(DataError) as caught:
        fetched(bench, repository)
    assert caught.value.hint
    return caught.value


def content_of(found: FetchedData) -> dict[str, bytes]:
    assert all(
        hashlib.sha256(one.source.read_bytes()).hexdigest() == one.sha256 for one in found.copies
    )
    assert {stat.S_IMODE(one.source.stat().st_mode) for one in found.copies} == {0o444}
    return {one.place: one.source.read_bytes() for one in found.copies}


WHOLE = {"data/1.bin": FIRST, "data/2.bin": SECOND}


def test_objects_come_from_the_remote(bench: DataBench, repository: LfsRepository) -> None:
    found = fetched(bench, repository)
    assert content_of(found) == WHOLE
    assert (found.name, found.origin, found.source) == ("*.bin", "2 objects of Git LFS", None)
    assert bench.left_on_the_way() == []
    assert not (bench.clone / ".git" / "lfs" / "objects").exists()


def test_objects_of_the_clone_need_no_git_lfs(bench: DataBench, repository: LfsRepository) -> None:
    shutil.copytree(
        repository.path / ".git" / "lfs", bench.clone / ".git" / "lfs", dirs_exist_ok=True
    )
    bench.environment["PATH"] = "/nonexistent"
    assert content_of(fetched(bench, repository)) == WHOLE


def test_a_damaged_object_of_the_clone_is_fetched(
    bench: DataBench, repository: LfsRepository
) -> None:
    objects = bench.clone / ".git" / "lfs" / "objects"
    shutil.copytree(repository.path / ".git" / "lfs" / "objects", objects, dirs_exist_ok=True)
    for path in objects.rglob("*"):
        if path.is_file():
            path.chmod(0o644)
            path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert content_of(fetched(bench, repository)) == WHOLE


def test_the_commit_under_test_does_not_say_where_from(
    bench: DataBench, repository: LfsRepository
) -> None:
    (bench.clone / ".lfsconfig").write_text("[lfs]\n\turl = http://127.0.0.1:9/hostile\n")
    (bench.clone / ".gitattributes").write_text("*.bin filter=evil\n")
    assert content_of(fetched(bench, repository)) == WHOLE


def test_the_base_commit_says_where_from(bench: DataBench, repository: LfsRepository) -> None:
    moved = bench.root / "moved.git"
    repository.remote.rename(moved)
    assert "did not come from the remote" in refused(bench, repository).message
    config = f'[lfs]\n\turl = "{moved.as_uri()}"\n'.encode()
    assert content_of(fetched(bench, repository, lfs_config=config)) == WHOLE


def test_a_remote_beside_the_clone(bench: DataBench, repository: LfsRepository) -> None:
    subprocess.run(
        ("git", "-C", str(bench.clone), "remote", "set-url", "origin", "../remote.git"),  # noqa: S607 - as above
        env=IDENTITY,
        check=True,
    )
    assert content_of(fetched(bench, repository)) == WHOLE


def test_hooks_and_transfers_of_the_clone_are_not_run(
    bench: DataBench, repository: LfsRepository
) -> None:
    ran = bench.root / "ran"
    for key in ("core.fsmonitor", "lfs.customtransfer.x.path", "lfs.standalonetransferagent"):
        subprocess.run(
            ("git", "-C", str(bench.clone), "config", key, f"touch {ran}"),  # noqa: S607 - as above
            env=IDENTITY,
            check=True,
        )
    assert content_of(fetched(bench, repository)) == WHOLE
    assert not ran.exists()


def test_an_object_that_was_never_pushed_is_one_error(
    bench: DataBench, repository: LfsRepository
) -> None:
    objects = repository.remote / "lfs" / "objects"
    digest = hashlib.sha256(SECOND).hexdigest()
    (objects / digest[:2] / digest[2:4] / digest).unlink()
    error = refused(bench, repository)
    assert error.message == "data: *.bin: 1 of 2 objects did not come from the remote"
    assert "`git lfs push --all origin`" in error.hint
    assert error.details


def test_other_bytes_in_the_remote_are_not_taken(
    bench: DataBench, repository: LfsRepository
) -> None:
    for path in (repository.remote / "lfs" / "objects").rglob("*"):
        if path.is_file():
            path.chmod(0o644)
            path.write_bytes(path.read_bytes()[:-1] + b"x")
    error = refused(bench, repository)
    assert error.message.startswith("data: *.bin: 2 of 2 objects ")
    assert list(bench.cache.glob("objects/*/*/*")) == []


def test_a_clone_without_a_remote_is_one_error(bench: DataBench, repository: LfsRepository) -> None:
    subprocess.run(
        ("git", "-C", str(bench.clone), "remote", "remove", "origin"),  # noqa: S607 - as above
        env=IDENTITY,
        check=True,
    )
    error = refused(bench, repository)
    assert error.message == "data: where Git LFS keeps its objects is not known"
    assert "lfs.url" in error.hint


def test_no_git_lfs_is_one_error(bench: DataBench, repository: LfsRepository) -> None:
    folder = bench.root / "bin"
    folder.mkdir()
    git = shutil.which("git")
    assert git is not None
    (folder / "git").symlink_to(git)
    bench.environment["PATH"] = str(folder)
    error = refused(bench, repository)
    assert error.message == "data: git-lfs is not installed, or not on the PATH"
    assert error.hint.startswith("Install it: `apt install git-lfs`")


def test_a_header_of_the_clone_is_handed_on_and_not_left_behind(
    bench: DataBench, repository: LfsRepository
) -> None:
    key = "http.https://example.org/.extraheader"
    subprocess.run(
        ("git", "-C", str(bench.clone), "config", key, "AUTHORIZATION: basic dGVzdA=="),  # noqa: S607 - as above
        env=IDENTITY,
        check=True,
    )
    folder = bench.root / "bin"
    folder.mkdir()
    (folder / "git").write_text("#!/bin/sh\ngrep -c dGVzdA== config $2/config; exit 1\n")
    (folder / "git").chmod(0o755)
    bench.environment["PATH"] = f"{folder}{os.pathsep}{bench.environment['PATH']}"
    error = refused(bench, repository)
    assert any(line.endswith("config:1") for line in error.details)
    left = [path for path in bench.cache.rglob("*") if path.is_file()]
    assert not any(b"dGVzdA==" in path.read_bytes() for path in left)


def test_objects_come_over_http_with_the_header_of_the_clone(
    bench: DataBench, repository: LfsRepository
) -> None:
    with LfsServer({hashlib.sha256(data).hexdigest(): data for data in WHOLE.values()}) as server:
        key = f"http.{server.url}/.extraheader"
        subprocess.run(
            ("git", "-C", str(bench.clone), "config", key, "Authorization: basic dGVzdA=="),  # noqa: S607 - as above
            env=IDENTITY,
            check=True,
        )
        config = f"[lfs]\n\turl = {server.url}/org/repo.git/info/lfs\n".encode()
        assert content_of(fetched(bench, repository, lfs_config=config)) == WHOLE
    asked = [(path, header) for path, header in server.asked if path.endswith("/batch")]
    assert asked == [("/org/repo.git/info/lfs/objects/batch", "basic dGVzdA==")]


def test_an_entry_without_pointers_needs_nothing(bench: DataBench) -> None:
    assert bench.data().fetch(DataSource(lfs="*.bin"), ()) == ()
