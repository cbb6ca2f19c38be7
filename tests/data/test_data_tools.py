"""How a program that fetches is started: what it sees, how long it may take, and what it says."""

from __future__ import annotations

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
    script = "head -c 3000000 /dev/zero | tr '\\0' x > more; sleep 600"
    error = refused(bench, program, script, max_bytes=1_000_000)
    assert error.message == "data: x.dvc: more than 1,000,000 bytes came"


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
            "GIT_DIR": "/x",
            "AWS_PROFILE": "ours",
        }
    )
    error = refused(
        bench,
        program,
        "env | cut -d= -f1 | sort | grep -E 'INPUT_|ACTIONS_|REPRO_GATE|GIT_DIR|AWS_PROFILE'\n"
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
