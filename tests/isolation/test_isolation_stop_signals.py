"""Signals: the first ends the work in order, the second at once; both leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from gate.errors import CancelledError
from gate.isolation.process_table import processes
from gate.isolation.processes import GRACE_SECONDS, KILL_SECONDS
from gate.isolation.stop_signals import StopSignals

PROGRAM = """
import os, pathlib, signal, sys
# whatever started these tests, `nohup` for example, may have left it ignored
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from gate.isolation import processes as running_process
from gate.isolation.stop_signals import StopSignals
from gate.isolation.processes import LocalProcesses
from gate.errors import GateError
from gate.isolation.process_request import ProcessRequest

running_process.GRACE_SECONDS = float(sys.argv[3])
interrupts = StopSignals()
request = ProcessRequest(
    argv=("sh", "-c", sys.argv[1]),
    env={"PATH": os.defpath},
    workdir=pathlib.Path(sys.argv[2]),
    timeout_seconds=600,
    output_limit_bytes=4096,
)
try:
    with interrupts.installed():
        LocalProcesses(interrupts).run(request, lambda _: print("on", flush=True))
except GateError as error:
    print(error.message, flush=True)
    sys.exit(int(error.exit_code))
"""
POLITE = "echo $$ > pid; echo on; sleep 600"
STUBBORN = "trap 'echo asked > asked' TERM; echo $$ > pid; echo on; while :; do sleep 1; done"
# a session of its own, as torchrun gives to its workers
SCATTERED = "setsid sh -c 'echo $$ > pid; sleep 600' & sleep 0.5; echo on; sleep 600"


class Start(Protocol):
    def __call__(self, training: str, grace_seconds: float = ...) -> subprocess.Popen[str]: ...


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A program that uses the adapters, started and waited for until its training runs."""
    started = []

    def begin(training: str, grace_seconds: float = GRACE_SECONDS) -> subprocess.Popen[str]:
        program = subprocess.Popen(
            (sys.executable, "-c", PROGRAM, training, str(tmp_path), str(grace_seconds)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(program)
        assert program.stdout is not None
        assert program.stdout.readline() == "on\n"
        return program

    yield begin
    for program in started:
        program.kill()
        program.communicate()


def training_lives(folder: Path) -> bool:
    pid = int((folder / "pid").read_text())
    return any(row.pid == pid and not row.ended for row in processes())


def soon(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_signal_cancels(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    program = start(POLITE)
    program.send_signal(number)
    out, _ = program.communicate(timeout=120)
    assert (program.returncode, out) == (4, f"cancelled by {number.name}\n")
    assert not training_lives(tmp_path)


@pytest.mark.parametrize("training", [STUBBORN, SCATTERED])
def test_a_training_that_does_not_listen_is_gone_in_time(
    start: Start, tmp_path: Path, training: str
) -> None:
    program = start(training)
    program.send_signal(signal.SIGTERM)
    out, _ = program.communicate(timeout=120)
    assert (program.returncode, out) == (4, "cancelled by SIGTERM\n")
    assert not training_lives(tmp_path)


def test_both_limits_end_before_a_runner_kills() -> None:
    # docs.github.com, workflow cancellation: SIGINT, after 7.5 s SIGTERM
    assert GRACE_SECONDS + KILL_SECONDS < 7.5


def test_a_second_signal_does_not_wait(start: Start, tmp_path: Path) -> None:
    program = start(STUBBORN, grace_seconds=600)
    program.send_signal(signal.SIGINT)
    # two signals that nobody has taken yet are one
    soon((tmp_path / "asked").exists)
    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=120)
    assert program.returncode == 4
    assert err.strip() == "stopped at once: every training process was killed, nothing was kept"
    soon(lambda: not training_lives(tmp_path))


def test_a_deferred_signal_is_raised_on_the_way_out() -> None:
    interrupts, seen = StopSignals(), []

    def work() -> None:
        with interrupts.installed(), interrupts.deferred():
            signal.raise_signal(signal.SIGTERM)
            seen.append("finished")

    with pytest.raises(CancelledError) as caught:
        work()
    assert seen == ["finished"]
    assert str(caught.value) == (
        "cancelled by SIGTERM\nhint: Nothing was judged. Start it again when you are ready."
    )


def test_a_deferred_signal_is_raised_where_it_is_allowed() -> None:
    interrupts, seen = StopSignals(), []

    def work() -> None:
        with interrupts.installed(), interrupts.deferred():
            signal.raise_signal(signal.SIGINT)
            try:
                with interrupts.allowed():
                    seen.append("never")
            finally:
                seen.append("cleaned up")

    with pytest.raises(CancelledError):
        work()
    assert seen == ["cleaned up"]


def test_cancelling_is_told_once() -> None:
    interrupts = StopSignals()
    with interrupts.installed():
        with pytest.raises(CancelledError):
            signal.raise_signal(signal.SIGINT)
        with interrupts.deferred():
            pass


def test_a_second_signal_uses_the_last_resorts_innermost_first(
    capfd: pytest.CaptureFixture[str],
) -> None:
    calls: list[object] = []
    interrupts = StopSignals(leave=calls.append)

    def work() -> None:
        with interrupts.installed(), interrupts.deferred():
            with interrupts.last_resort(lambda: calls.append("gone")):
                pass
            with (
                interrupts.last_resort(lambda: calls.append("opened")),
                interrupts.last_resort(lambda: calls.append("killed")),
            ):
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(CancelledError):
        work()
    assert calls == ["killed", "opened", 4]
    assert "stopped at once" in capfd.readouterr().err


def test_handlers_are_put_back() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    with StopSignals().installed():
        assert [signal.getsignal(number) for number in numbers] != before
    assert [signal.getsignal(number) for number in numbers] == before


def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals().installed():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signals_reach_the_main_thread_while_another_works() -> None:
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
    with StopSignals().installed():
        timer.start()
        with pytest.raises(CancelledError):
            time.sleep(60)
    timer.join()


def test_a_cancellation_that_a_library_ate_is_raised_before_the_next_process() -> None:
    interrupts = StopSignals()
    with pytest.raises(CancelledError):
        interrupts._handle(signal.SIGINT, None)
    with pytest.raises(CancelledError), interrupts.deferred(), interrupts.allowed():
        pytest.fail("a process was started")


def _wait_while(interrupts: StopSignals, reader: int, other: threading.Thread) -> None:
    other.start()
    interrupts.wait_for_input(reader)


def test_a_wait_for_input_ends_by_a_signal_that_did_not_interrupt_it() -> None:
    # handled in another thread, as one that comes just before the wait: no system call is broken
    interrupts = StopSignals()
    reader, writer = os.pipe()
    other = threading.Thread(
        target=lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    )
    try:
        with interrupts.installed(), pytest.raises(CancelledError, match="cancelled by SIGINT"):
            _wait_while(interrupts, reader, other)
    finally:
        other.join()
        os.close(reader)
        os.close(writer)


def test_a_wait_for_input_ends_when_there_is_some() -> None:
    reader, writer = os.pipe()
    woken_by = signal.set_wakeup_fd(-1)
    try:
        os.write(writer, b"2")
        StopSignals().wait_for_input(reader)
        assert os.read(reader, 1) == b"2"
        assert signal.set_wakeup_fd(woken_by) == -1
    finally:
        os.close(reader)
        os.close(writer)
