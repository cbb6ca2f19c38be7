"""A confined child that reads: its answer, its faults, its limits and its end."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from each_row import each_row

from gate.comparison.state_difference import LeafChange
from gate.errors import (
    AttestationError,
    CommitError,
    EvidenceError,
    ExitCode,
    GateError,
    InternalError,
    KeyServiceDownError,
    RunError,
    SealServiceError,
    SettingsError,
)
from gate.isolation.confined_look import read_apart, reading_seconds
from gate.isolation.confinement import CPU_SECONDS
from gate.text.plain_records import PlainForm

TEXT = PlainForm(str)


@dataclass(frozen=True)
class Inner:
    change: LeafChange
    size: int | float | None


@dataclass(frozen=True)
class Outer:
    name: str
    inner: tuple[Inner, ...]
    pair: tuple[int, float]


OUTER = Outer(
    # half a surrogate pair, as the key of a pickle may have it
    "a\ud800\n",
    (
        Inner(LeafChange.CHANGED, 2**70),
        Inner(LeafChange.EXTRA, float("inf")),
        Inner(LeafChange.EXTRA, None),
    ),
    (1, 0.1),
)


def test_a_record_comes_as_it_was() -> None:
    assert read_apart(PlainForm(Outer), lambda: OUTER, what="it") == OUTER


@each_row(
    "data",
    [
        b"7",
        b'{"name": "a", "inner": [], "pair": [1]}',
        b'{"name": "a", "inner": [], "pair": [1, 0.5], "more": 1}',
        b'{"name": "a", "inner": [], "pair": [true, 0.5]}',
        b'{"name": "a", "inner": [{"change": "other", "size": 1}], "pair": [1, 0.5]}',
        b'{"name": "a", "inner": [{"change": "extra", "size": "1"}], "pair": [1, 0.5]}',
    ],
)
def test_an_answer_of_another_form_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        PlainForm(Outer).validate_json(data)


@each_row(
    ("raised", "kind", "code"),
    [
        (SettingsError("a", hint="b", details=("c", "d")), SettingsError, ExitCode.USAGE),
        (CommitError("a"), CommitError, ExitCode.ERROR),
        (AttestationError("a"), AttestationError, ExitCode.FAIL),
        # what no reader raises keeps the exit code of the kind that it is of, or is of none
        (SealServiceError("a"), AttestationError, ExitCode.FAIL),
        (KeyServiceDownError("a"), KeyServiceDownError, ExitCode.FAIL),
        (RunError("a"), EvidenceError, ExitCode.ERROR),
    ],
)
def test_a_fault_comes_as_it_was(raised: GateError, kind: type[GateError], code: ExitCode) -> None:
    def look() -> str:
        raise raised

    with pytest.raises(GateError) as found:
        read_apart(TEXT, look, what="it")
    assert type(found.value) is kind
    assert (str(found.value), found.value.exit_code) == (str(raised), code)


def test_a_mistake_of_ours_is_told_as_one() -> None:
    with pytest.raises(InternalError) as found:
        read_apart(TEXT, lambda: str(1 // 0), what="it")
    assert found.value.message == "repro-gate itself failed: ZeroDivisionError"
    assert "REPRO_GATE_TRACEBACK=1" in found.value.hint


def _write() -> str:
    Path("written").write_text("x")
    return ""


def _connect() -> str:
    socket.create_connection(("127.0.0.1", 9))
    return ""


def _start() -> str:
    subprocess.run([sys.executable, "-c", ""], check=True)
    return ""


@pytest.mark.parametrize("act", [_write, _connect, _start])
def test_the_child_writes_nothing_reaches_nobody_and_starts_nothing(
    act: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GateError) as found:
        read_apart(TEXT, act, what="it")
    assert "PermissionError" in found.value.message
    assert not [path for path in tmp_path.iterdir() if path.stat().st_size]


def _sleep() -> str:
    time.sleep(60)
    return ""


def _end() -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


def test_what_takes_too_much_memory_or_time_is_told() -> None:
    with pytest.raises(EvidenceError, match=r"^x\.pt takes too much memory to read\n") as found:
        read_apart(TEXT, lambda: str(bytearray(5 * 1024**3)), what="x.pt")
    assert found.value.hint == "Name fewer or smaller files."
    with pytest.raises(EvidenceError, match=r"^x\.pt takes longer than 0\.2 s to read\n"):
        read_apart(TEXT, _sleep, what="x.pt", seconds=0.2)
    with pytest.raises(EvidenceError, match=r"^x\.pt takes too much memory to read\n"):
        read_apart(TEXT, lambda: "x" * 5_000_000, what="x.pt", answer_bytes=1_000_000)


def test_the_time_grows_with_the_files_and_links_count_for_nothing(tmp_path: Path) -> None:
    for name in ("a", "deep/b"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        with (tmp_path / name).open("wb") as file:
            file.truncate(20_000_000_000)
    (tmp_path / "link").symlink_to("/")
    below = reading_seconds(tmp_path)
    assert CPU_SECONDS + 2000 <= below < CPU_SECONDS + 2001
    assert reading_seconds(tmp_path / "a", tmp_path / "gone") == CPU_SECONDS + 1000


# cuts a file once any process has mapped it
CUTTER = """
import glob, os, sys, time
def mapped():
    for maps in glob.glob("/proc/[0-9]*/maps"):
        try:
            if sys.argv[1] in open(maps).read():
                return True
        except OSError:
            pass
while not mapped():
    time.sleep(0.01)
os.truncate(sys.argv[1], 0)
"""


def test_a_file_that_becomes_shorter_while_it_is_mapped_is_told(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    path.write_bytes(bytes(10_000))
    with path.open("r+b") as file:

        def look() -> str:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            while path.stat().st_size:
                time.sleep(0.01)
            return str(mapping[0])

        # the child cannot cut it, and this process waits for the child
        with subprocess.Popen([sys.executable, "-c", CUTTER, path]) as cutter:
            with pytest.raises(EvidenceError, match="a file became shorter, or its disk failed"):
                read_apart(TEXT, look, what="it")
            assert cutter.wait(60) == 0


def test_a_crash_is_told() -> None:
    with pytest.raises(EvidenceError, match=r"the process that reads it ended early \(-9\)"):
        read_apart(TEXT, _end, what="it")


SLOW = """
import os, sys, time
from gate import cli
from gate.commands import digest
def slow(*_):
    print(os.getpid(), flush=True)
    time.sleep(600)
digest.is_package = slow
sys.argv = ["repro-gate", "digest", "x.pt"]
cli.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_a_command_and_its_child(number: signal.Signals) -> None:
    # a shell starts what runs behind it with SIGINT ignored, which a program then keeps
    default = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    argv = [sys.executable, "-c", default + SLOW]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        child = int(parent.stdout.readline())
        parent.send_signal(number)
        ended = parent.wait(60)
        assert ended == (-9 if number is signal.SIGKILL else 128 + number)
        assert parent.stderr.read() == ""
    for _ in range(1000):
        try:
            state = Path(f"/proc/{child}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        # dead; whoever has it now may take long to ask for its end
        if state == "Z":
            return
        time.sleep(0.01)
    pytest.fail(f"process {child} lives on")


def test_the_program_tells_of_a_state_once(tmp_path: Path) -> None:
    missing = tmp_path / "none.pt"
    done = subprocess.run(
        [sys.executable, "-m", "gate", "digest", missing],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr.startswith(f"error: {missing}: cannot be read")
    assert done.stderr.count("error:") == 1


def test_a_state_of_hundreds_of_files_may_be_open_at_once(tmp_path: Path) -> None:
    for number in range(400):
        (tmp_path / f"{number}").touch()

    def look() -> str:
        return str(len([os.open(path, os.O_RDONLY) for path in tmp_path.iterdir()]))

    assert read_apart(TEXT, look, what="it") == "400"
