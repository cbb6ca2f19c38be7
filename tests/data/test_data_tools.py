"""How a program that fetches is started: what it sees, how long it may take, and what it says."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from data_bench import DataBench

from gate.errors import DataError, ExitCode

POINTER = f"outs:\n- md5: {'a' * 32}\n  size: 3\n  hash: md5\n  path: x.bin\n"
CONFIG = "[core]\nremote = store\n['remote \"store\"']\nurl = /nonexistent\n"


@pytest.fixture
def program(bench: DataBench) -> Path:
    """A program in the place of dvc; write it."""
    (bench.clone / ".dvc").mkdir(parents=True)
    (bench.clone / ".dvc" / "config").write_text(CONFIG)
    (bench.clone / "x.dvc").write_text(POINTER)
    folder = bench.root / "bin"
    folder.mkdir()
    bench.environment["PATH"] = f"{folder}:{bench.environment['PATH']}"
    return folder / "dvc"


def refused(bench: DataBench, program: Path, script: str, **options: object) -> DataError:
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    with pytest.raises(DataError) as caught:
        bench.dvc("x.dvc", **options)  # type: ignore[arg-type] # by name
    assert caught.value.exit_code is ExitCode.ERROR
    assert caught.value.hint
    return caught.value


# what DVC does, for a remote that is a folder: gives its objects to a cache, or one as a file
DVC = """#!/bin/sh
case $1 in
    get-url) cp "STORE/${2#remote://store/}" "$3" ;;
    fetch) cp -R STORE/. objects/ ;;
esac
"""


@pytest.fixture
def store(bench: DataBench, program: Path) -> Path:
    """The remote of a program that fetches as DVC does."""
    folder = bench.root / "store"
    folder.mkdir()
    program.write_text(DVC.replace("STORE", str(folder)))
    program.chmod(0o755)
    return folder


def put(store: Path, data: bytes, *, end: str = "", old: bool = False) -> str:
    """Store an object under its MD5, which is answered."""
    digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
    there = store / ("" if old else "files/md5") / digest[:2] / f"{digest[2:]}{end}"
    there.parent.mkdir(parents=True, exist_ok=True)
    there.write_bytes(data)
    return digest


def folder_of(store: Path, files: dict[str, bytes]) -> str:
    """A `.dvc` file of a folder that the remote holds."""
    rows = [{"md5": put(store, data), "relpath": path} for path, data in files.items()]
    digest = put(store, json.dumps(rows).encode(), end=".dir")
    return f"outs:\n- md5: {digest}.dir\n  hash: md5\n  path: mini\n"


def test_a_folder_is_fetched_checked_and_put_together(bench: DataBench, store: Path) -> None:
    files = {"a/1.npy": b"one", "a/2.npy": b"one", "b": b"two"}
    (bench.clone / "x.dvc").write_text(folder_of(store, files))
    found = bench.dvc("x.dvc")
    assert found.source is not None
    assert {path: (found.source / path).read_bytes() for path in files} == files
    assert found.place == "mini"
    assert bench.left_on_the_way() == []
    (found.source / "b").chmod(0o644)
    (found.source / "b").write_bytes(b"damaged")
    assert bench.dvc("x.dvc").source == found.source
    assert (found.source / "b").read_bytes() == b"two"


def test_an_old_file_is_fetched_from_its_old_place(bench: DataBench, store: Path) -> None:
    digest = put(store, b"a\nb\n", old=True)
    (store / digest[:2] / digest[2:]).write_bytes(b"a\r\nb\r\n")
    (bench.clone / "x.dvc").write_text(f"outs:\n- md5: {digest}\n  path: x.txt\n")
    found = bench.dvc("x.dvc")
    assert found.source is not None
    assert found.source.read_bytes() == b"a\r\nb\r\n"


def test_wrong_and_missing_objects_are_not_taken(bench: DataBench, store: Path) -> None:
    (bench.clone / "x.dvc").write_text(folder_of(store, {"1": b"one", "2": b"two"}))
    victim = store / "files" / "md5" / "f9" / "7c5d29941bfb1b2fdab0874906ab82"
    victim.write_bytes(b"not one")
    with pytest.raises(DataError, match="1 of 2 files have another MD5 than the commit names"):
        bench.dvc("x.dvc")
    victim.unlink()
    with pytest.raises(DataError, match="1 of 2 files did not come from the remote"):
        bench.dvc("x.dvc")
    victim.write_bytes(b"one")
    assert bench.dvc("x.dvc").source is not None


def test_a_listing_that_is_missing_or_wrong_is_not_taken(bench: DataBench, store: Path) -> None:
    (bench.clone / "x.dvc").write_text(folder_of(store, {"1": b"one"}))
    (listing,) = store.rglob("*.dir")
    right = listing.read_bytes()
    listing.write_bytes(b"[]")
    with pytest.raises(DataError, match="the remote's listing of it has another MD5"):
        bench.dvc("x.dvc")
    listing.unlink()
    with pytest.raises(DataError, match="its listing did not come from the remote"):
        bench.dvc("x.dvc")
    listing.write_bytes(right)
    assert bench.dvc("x.dvc").source is not None


def test_no_program_is_one_error(bench: DataBench, program: Path) -> None:
    bench.environment["PATH"] = f"{program.parent}:."
    with pytest.raises(DataError) as caught:
        bench.dvc("x.dvc")
    assert caught.value.message == "data: dvc is not installed, or not on the PATH"
    assert caught.value.hint.startswith("Install it for the gate: `pip install 'dvc[s3]'`")


def test_a_slow_remote_ends_at_the_time_limit(bench: DataBench, program: Path) -> None:
    error = refused(bench, program, "sleep 600", timeout_seconds=0.5)
    assert error.message == "data: x.dvc: not fetched within 0.5 s"
    assert "fetch.timeout_seconds" in error.hint


def test_what_comes_too_much_is_stopped_while_it_comes(bench: DataBench, program: Path) -> None:
    script = "head -c 3000000 /dev/zero | tr '\\0' x > objects/more; sleep 600"
    error = refused(bench, program, script, max_bytes=1_000_000)
    assert error.message == "data: x.dvc: the download exceeds 1,000,000 bytes"


def test_what_it_says_is_shown_harmless_and_without_passwords(
    bench: DataBench, program: Path
) -> None:
    said = "no https://user:pass@host/x \\033[31m::error::"
    error = refused(bench, program, f"printf '{said}\\n'; exit 1")
    assert error.message == "data: x.dvc: x.bin: 1 of 1 files did not come from the remote"
    assert error.details == ("no https://host/x : :error: :",)


def test_it_sees_neither_the_jobs_secrets_nor_the_clone(bench: DataBench, program: Path) -> None:
    bench.environment.update(
        {
            "INPUT_GITHUB-TOKEN": "t",
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "t",
            "REPRO_GATE_KEY": "k",
            "MLFLOW_TRACKING_PASSWORD": "p",
            "VAULT_TOKEN": "t",
            "GIT_DIR": "/x",
            "AWS_PROFILE": "ours",
        }
    )
    error = refused(
        bench,
        program,
        "env | cut -d= -f1 | sort "
        "| grep -E 'INPUT_|ACTIONS_|REPRO_GATE|MLFLOW|VAULT|GIT_DIR|AWS_PROFILE'\n"
        "pwd; exit 1",
    )
    assert error.details[0] == "AWS_PROFILE"
    assert error.details[1].startswith(str(bench.cache / "fetching"))
    assert len(error.details) == 2


def test_a_login_is_not_left_behind(bench: DataBench, program: Path) -> None:
    local = bench.clone / ".dvc" / "config.local"
    local.write_text("['remote \"store\"']\nsecret_access_key = the-secret\n")
    refused(bench, program, "grep -c the-secret .dvc/config; exit 1", trusted=True)
    left = [path for path in bench.cache.rglob("*") if path.is_file()]
    assert not any(b"the-secret" in path.read_bytes() for path in left)
