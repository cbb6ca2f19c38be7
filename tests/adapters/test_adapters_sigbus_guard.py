"""A reader of mapped files whose end is told, as the program itself ends."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BEGIN = """
import mmap, os, signal, sys, time
from gate.adapters.process.sigbus_guard import run_under_sigbus_guard
from gate.errors import GateError
# a shell starts what runs behind it with SIGINT ignored, which a program then keeps
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)
try:
    run_under_sigbus_guard()
except GateError as error:
    sys.exit(f"told: {error.message}")
"""
CUT = """
with open(sys.argv[1], "r+b") as file:
    mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    file.truncate(0)
    print(mapping[0])
"""


def _program(body: str, *arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", BEGIN + body, *map(str, arguments)]


def test_a_file_that_becomes_shorter_while_it_is_mapped_is_told(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    path.write_bytes(bytes(10_000))
    done = subprocess.run(_program(CUT, path), capture_output=True, text=True, check=False)
    assert done.stderr == ("told: a file became shorter, or its disk failed, while it was read\n")
    assert done.returncode == 1


@pytest.mark.parametrize("code", [0, 1, 4])
def test_the_exit_code_is_that_of_the_child(code: int) -> None:
    done = subprocess.run(
        _program(f"print('read'); sys.exit({code})"), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "read\n", "")


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    program = _program("print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)")
    shell = f"trap '' HUP; exec {shlex.join(program)}"
    done = subprocess.run(["/bin/sh", "-c", shell], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_both(number: signal.Signals) -> None:
    body = "print(os.getpid(), flush=True); time.sleep(600)"
    with subprocess.Popen(_program(body), stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.send_signal(number)
        assert parent.wait(60) == 128 + number
    _gone(child)


def test_a_signal_right_after_the_fork_ends_both_too(tmp_path: Path) -> None:
    # the child reads, and says so, before its parent has gone on
    late = """
fork = os.fork
def late_parent():
    child = fork()
    if child:
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
    return child
os.fork = late_parent
"""
    body = "print(os.getpid(), flush=True); time.sleep(600)"
    go_on = tmp_path / "go-on"
    argv = [sys.executable, "-c", BEGIN.replace("\ntry:", late + "try:") + body, str(go_on)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.send_signal(signal.SIGTERM)
        go_on.touch()
        assert parent.wait(60) == 128 + signal.SIGTERM
    _gone(child)


def _gone(process: int) -> None:
    for _ in range(1000):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    pytest.fail(f"process {process} lives on")


def test_the_program_reads_states_in_a_watched_process(tmp_path: Path) -> None:
    missing = tmp_path / "none.pt"
    done = subprocess.run(
        [sys.executable, "-m", "gate", "digest", missing],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr.startswith(f"error: {missing}: cannot be read")
    assert done.stderr.count("error:") == 1
