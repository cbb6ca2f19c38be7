"""One call at a time in an output folder, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gate.errors import SettingsError, StorageError
from gate.system.files.files import LocalFiles

HOLD = """
import subprocess, sys
from pathlib import Path
from gate.system.files.files import LocalFiles
with LocalFiles().held_folder(Path(sys.argv[1])):
    # what a gate call starts lives on when that is killed
    child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
    print(child.pid, flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_call(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that has the folder, and the number of one that it started."""
    with subprocess.Popen(
        (sys.executable, "-c", HOLD, str(folder)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            yield process, child
        finally:
            process.kill()
            os.kill(child, signal.SIGKILL)


def test_a_second_call_is_told_who_works_there_and_touches_nothing(
    files: LocalFiles, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with another_call(out) as (process, _):
        before = {path.name: path.read_bytes() for path in out.iterdir()}
        with pytest.raises(SettingsError) as caught, files.held_folder(out):
            pytest.fail("both have it")
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert caught.value.message == f"another repro-gate call (process {process.pid}) is using {out}"
    assert caught.value.hint == "Wait for it, or choose another folder with --out."


def test_a_call_that_is_killed_gives_the_folder_back_whatever_it_started(
    files: LocalFiles, tmp_path: Path
) -> None:
    with another_call(tmp_path) as (process, child):
        process.kill()
        process.wait()
        os.kill(child, 0)
        with files.held_folder(tmp_path):
            assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"


def test_one_call_after_another_may_have_it(files: LocalFiles, tmp_path: Path) -> None:
    for _ in range(2):
        with files.held_folder(tmp_path / "new/out"):
            assert (tmp_path / "new/out").is_dir()


def test_a_folder_below_the_callers_own_is_named_as_they_did(
    files: LocalFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "repro-gate-out").write_text("mine")
    with pytest.raises(SettingsError) as caught, files.held_folder(tmp_path / "repro-gate-out"):
        pytest.fail("it is a file")
    assert str(caught.value) == (
        "repro-gate-out is a file, not a folder\nhint: Move it away, or choose another folder "
        "with --out."
    )
    assert (tmp_path / "repro-gate-out").read_text() == "mine"


def test_a_link_in_the_place_of_the_lock_is_not_followed(files: LocalFiles, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/.lock").symlink_to("../victim")
    with pytest.raises(StorageError, match="locking"), files.held_folder(tmp_path / "out"):
        pytest.fail("it was followed")
    assert (tmp_path / "victim").read_text() == "mine"


def test_a_pipe_in_the_place_of_the_lock_is_refused(files: LocalFiles, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(StorageError, match="a FIFO"), files.held_folder(tmp_path):
        pytest.fail("it was opened")


def test_a_second_writer_waits_for_the_first_and_no_lock_file_is_left(
    files: LocalFiles, tmp_path: Path
) -> None:
    waits = (
        "import sys; from pathlib import Path\n"
        "from gate.system.files.files import LocalFiles\n"
        "print('asks', flush=True)\n"
        "with LocalFiles().one_writer(Path(sys.argv[1])): print((Path(sys.argv[1]) / 'f').exists())"
    )
    with subprocess.Popen(
        (sys.executable, "-c", waits, str(tmp_path)), stdout=subprocess.PIPE, text=True
    ) as second:
        assert second.stdout is not None
        with files.one_writer(tmp_path):
            started = second.stdout.readline()
            assert second.poll() is None
            (tmp_path / "f").touch()
        assert (started, second.stdout.read()) == ("asks\n", "True\n")
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_file_in_place_of_a_writers_folder_is_a_storage_fault(
    files: LocalFiles, tmp_path: Path
) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(StorageError, match="making"), files.one_writer(tmp_path / "f"):
        pytest.fail("it is not a folder")
