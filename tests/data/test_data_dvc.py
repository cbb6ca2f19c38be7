"""Real DVC: a local remote, an S3 server of its own process, damaged remotes, old pointers."""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from data_bench import DataBench
from dvc_workshop import DvcRepository, stored
from s3_server import LOGIN, s3_server

from gate.errors import DataError

pytestmark = pytest.mark.skipif(
    shutil.which("dvc") is None, reason="dvc is not on the PATH: make test-data"
)
TRAIN = {"0.npy": b"zero", "1.npy": b"one", "sub/ä.txt": b"a\r\nb\r\n", "sub/copy.npy": b"one"}


@pytest.fixture
def repository(tmp_path: Path) -> DvcRepository:
    # from the place of the configuration: `../../store` lies beside the clone
    return DvcRepository(tmp_path / "clone", "../store")


@pytest.fixture
def store(repository: DvcRepository) -> Path:
    return repository.path.parent / "store"


def refused(bench: DataBench, path: str, **options: object) -> DataError:
    with pytest.raises(DataError) as caught:
        bench.dvc_all(path, **options)  # type: ignore[arg-type] # by name
    assert caught.value.hint
    assert list(bench.cache.glob("objects/*/*/*")) == []
    return caught.value


def content_of(folder: Path | None) -> dict[str, bytes]:
    assert folder is not None
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_a_folder_of_a_local_remote(bench: DataBench, repository: DvcRepository) -> None:
    path = repository.add("data/train", TRAIN)
    found = bench.dvc(path)
    assert (found.name, found.place) == ("data/train.dvc", "data/train")
    assert found.origin.startswith("md5:")
    assert found.origin.endswith(".dir")
    assert content_of(found.source) == TRAIN
    assert found.source is not None
    modes = {stat.S_IMODE(path.stat().st_mode) for path in found.source.rglob("*.npy")}
    assert modes == {0o444}
    assert bench.left_on_the_way() == []


def test_a_file_and_a_folder_that_hold_the_same(
    bench: DataBench, repository: DvcRepository
) -> None:
    repository.write(
        "dvc.yaml",
        "stages:\n  make:\n    cmd: mkdir -p out && echo x > out/a && echo x > b\n"
        "    outs: [out, b]\n",
    )
    repository.dvc("repro")
    repository.dvc("push")
    found = {one.place: one for one in bench.dvc_all("dvc.lock", stage="make")}
    assert set(found) == {"out", "b"}
    assert found["out"].name == "dvc.lock:make:out"
    assert content_of(found["out"].source) == {"a": b"x\n"}
    assert found["b"].source is not None
    assert found["b"].source.read_bytes() == b"x\n"


def test_the_second_call_needs_no_dvc(bench: DataBench, repository: DvcRepository) -> None:
    path = repository.add("data/train", TRAIN)
    found = bench.dvc(path)
    bench.environment["PATH"] = "/nonexistent"
    assert bench.dvc(path) == found


def test_an_old_pointer_is_found_at_its_old_place(
    bench: DataBench, repository: DvcRepository, store: Path
) -> None:
    text, plain = b"a\r\nb\r\n" * 100, b"a\nb\n" * 100
    digest = hashlib.md5(plain, usedforsecurity=False).hexdigest()
    listing = json.dumps([{"md5": digest, "relpath": "x.txt"}]).encode()
    folder = hashlib.md5(listing, usedforsecurity=False).hexdigest()
    for name, data in ((digest, text), (f"{folder}.dir", listing)):
        there = store / name[:2] / name[2:]
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(data)
    repository.write("x.dvc", f"outs:\n- md5: {folder}.dir\n  path: old\n")
    assert content_of(bench.dvc("x.dvc").source) == {"x.txt": text}
    repository.write("y.dvc", f"outs:\n- md5: {digest}\n  path: y.txt\n")
    found = bench.dvc("y.dvc")
    assert found.source is not None
    assert found.source.read_bytes() == text


def test_what_was_never_pushed_is_one_error(
    bench: DataBench, repository: DvcRepository, store: Path
) -> None:
    file = repository.add("one.bin", b"one")
    folder = repository.add("data/train", TRAIN)
    shutil.rmtree(store)
    store.mkdir()
    error = refused(bench, file)
    assert error.message == (
        "data: one.bin.dvc: one.bin: 1 of 1 files did not come from the remote"
    )
    assert "`dvc push`" in error.hint
    assert error.details
    error = refused(bench, folder)
    assert error.message == (
        "data: data/train.dvc: data/train: its listing did not come from the remote"
    )


def test_a_half_pushed_folder_is_not_taken_as_whole(
    bench: DataBench, repository: DvcRepository, store: Path
) -> None:
    path = repository.add("data/train", TRAIN)
    victim = next(one for one in stored(store) if one.read_bytes() == b"one")
    victim.unlink()
    error = refused(bench, path)
    assert "data/train: 1 of 3 files did not come from the remote" in error.message
    victim.write_bytes(b"one")
    assert content_of(bench.dvc(path).source) == TRAIN


def test_other_bytes_in_the_remote_are_one_error(
    bench: DataBench, repository: DvcRepository, store: Path
) -> None:
    path = repository.add("data/train", TRAIN)
    victim = next(one for one in stored(store) if one.read_bytes() == b"one")
    victim.chmod(0o644)
    victim.write_bytes(b"two")
    error = refused(bench, path)
    assert "1 of 3 files have another MD5 than the commit names" in error.message
    listing = next(one for one in stored(store) if one.name.endswith(".dir"))
    listing.chmod(0o644)
    listing.write_bytes(b"[]")
    shutil.rmtree(bench.cache)
    bench.close()
    assert "listing of it has another MD5" in refused(bench, path).message


def test_a_listing_that_leads_out_is_refused_before_dvc_sees_it(
    bench: DataBench, repository: DvcRepository, store: Path
) -> None:
    digest = hashlib.md5(b"one", usedforsecurity=False).hexdigest()
    listing = json.dumps([{"md5": digest, "relpath": "../../../../escaped"}]).encode()
    folder = hashlib.md5(listing, usedforsecurity=False).hexdigest()
    for name, data in ((digest, b"one"), (f"{folder}.dir", listing)):
        there = store / "files" / "md5" / name[:2] / name[2:]
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(data)
    repository.write("x.dvc", f"outs:\n- md5: {folder}.dir\n  hash: md5\n  path: x\n")
    error = refused(bench, "x.dvc")
    assert "'../../../../escaped' is not a path below the folder" in error.message
    assert list(bench.root.rglob("escaped")) == []


def test_a_size_that_is_a_lie_ends_at_the_limit(
    bench: DataBench, repository: DvcRepository
) -> None:
    path = repository.add("big.bin", bytes(range(256)) * 40_000)
    text = (repository.path / path).read_text().replace("size: 10240000", "size: 1")
    repository.write(path, text)
    error = refused(bench, path, max_bytes=1_000_000)
    assert error.message == "data: big.bin.dvc: the download exceeds 1,000,000 bytes"
    assert "fetch.max_bytes" in error.hint


def test_the_clones_own_logins_count_only_where_it_is_trusted(
    bench: DataBench, repository: DvcRepository, store: Path
) -> None:
    path = repository.add("one.bin", b"one")
    store.rename(store.parent / "moved")
    repository.dvc("remote", "modify", "--local", "store", "url", "../moved")
    assert "did not come from the remote" in refused(bench, path).message
    assert bench.dvc(path, trusted=True).source is not None


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[str]:
    """The address of an S3 server with one bucket, `data`."""
    with s3_server(tmp_path) as url:
        yield url


def test_a_remote_of_s3_is_read_with_the_gates_own_login(
    bench: DataBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3: str
) -> None:
    for name, value in LOGIN.items():
        monkeypatch.setenv(name, value)
    repository = DvcRepository(tmp_path / "clone", "s3://data/sets")
    repository.dvc("remote", "modify", "store", "endpointurl", s3)
    path = repository.add("data/train", TRAIN)
    bench.environment.update(LOGIN)
    assert content_of(bench.dvc(path).source) == TRAIN
    objects = requests.get(f"{s3}/data?list-type=2", timeout=60).text
    assert objects.count("<Key>sets/files/md5/") == 4


def test_an_s3_server_that_is_down_is_one_error(
    bench: DataBench, tmp_path: Path, repository: DvcRepository
) -> None:
    del tmp_path
    path = repository.add("one.bin", b"one")
    repository.dvc("remote", "modify", "store", "url", "s3://data/sets")
    repository.dvc("remote", "modify", "store", "endpointurl", "http://127.0.0.1:9")
    bench.environment.update({**LOGIN, "AWS_MAX_ATTEMPTS": "1"})
    error = refused(bench, path)
    assert "one.bin: 1 of 1 files did not come from the remote" in error.message
    assert any("127.0.0.1:9" in line for line in error.details)
    assert not any("the-secret" in line for line in error.details)
