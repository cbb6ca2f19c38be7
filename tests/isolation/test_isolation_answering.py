"""A process that answers questions: what a child may do, and what of it is there for the next one.

The program's `answer` runs each question as Python and prints what comes of it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gate.errors import RunError
from gate.isolation.answering_client import LocalAnsweringProcess
from gate.isolation.kernel_calls import ASK_VERSION, CREATE_RULESET, system_call
from gate.isolation.modes import Credentials, WriteGuard
from gate.isolation.process_request import ProcessRequest, ProcessResult
from gate.isolation.process_table import apart, descendants
from gate.isolation.processes import LocalProcesses
from gate.isolation.stop_signals import StopSignals

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import ctypes, os, resource, signal, socket, sys, threading
sys.path += sys.argv[1:-1]
from gate.isolation.answering_server import serve
kept = []
def answer(question):
    told = {}
    exec(question, globals(), told)
    return str(told["told"]).encode()
serve(int(sys.argv[-1]), answer)
"""
REQUEST = ProcessRequest(
    argv=(sys.executable, "-I", "-S", "-B", "-c", PROGRAM, str(ROOT), *filter(None, sys.path)),
    env={},
    workdir=Path("/"),
    timeout_seconds=120.0,
    output_limit_bytes=10_000,
)


def landlocked() -> bool:
    try:
        system_call(CREATE_RULESET, None, 0, ASK_VERSION)
    except OSError:
        return False
    return True


@contextmanager
def answering(request: ProcessRequest = REQUEST) -> Iterator[LocalAnsweringProcess]:
    before = frozenset(apart)
    process = LocalAnsweringProcess(request, StopSignals())
    try:
        yield process
    finally:
        process.end()
        assert apart == before


@pytest.fixture(scope="module")
def asked() -> Iterator[LocalAnsweringProcess]:
    with answering() as process:
        yield process


def told(process: LocalAnsweringProcess, question: str) -> str:
    result = process.ask(question.encode())
    assert (result.exit_code, result.timed_out) == (0, False), result.output
    return result.output.decode()


def parent_of_children(process: LocalAnsweringProcess) -> int:
    return int(told(process, "told = os.getppid()"))


def failed(process: LocalAnsweringProcess, question: str) -> str:
    """The last line of a child that ended with an exception."""
    result = process.ask(question.encode())
    assert result.exit_code == 1, result.output
    return result.output.decode().splitlines()[-1]


def test_nothing_of_one_question_is_there_for_the_next(asked: LocalAnsweringProcess) -> None:
    assert told(asked, "kept.append(1); os.environ['X'] = 'x'; told = kept") == "[1]"
    assert told(asked, "told = kept, os.environ.get('X')") == "([], None)"
    one, other = (told(asked, "told = os.getpid()") for _ in range(2))
    assert one != other


def test_it_has_one_thread_to_fork_from(asked: LocalAnsweringProcess) -> None:
    status = Path(f"/proc/{parent_of_children(asked)}/status").read_text("ascii")
    assert "Threads:\t1\n" in status


@pytest.mark.parametrize(
    "attempt",
    [
        "os.fork()",
        "os.execv('/bin/true', ['true'])",
        "socket.socket(socket.AF_UNIX)",
        "socket.socketpair()",
        "os.kill(os.getppid(), signal.SIGKILL)",
        "os.kill(0, signal.SIGCHLD)",
        "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
        "os.sched_setaffinity(os.getppid(), [0])",
        "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
    ],
)
def test_a_child_reaches_no_other_process(asked: LocalAnsweringProcess, attempt: str) -> None:
    before = parent_of_children(asked)
    assert failed(asked, f"told = {attempt}").startswith("PermissionError")
    assert parent_of_children(asked) == before


def test_a_child_makes_no_object_that_outlives_it(asked: LocalAnsweringProcess) -> None:
    calls = ("shmget(0, 4096, 0o1666)", "semget(0, 1, 0o1666)", "msgget(0, 0o1666)")
    made = ", ".join(f"ctypes.CDLL(None).{call}" for call in calls)
    assert told(asked, f"told = [{made}]") == "[-1, -1, -1]"


@pytest.mark.skipif(not landlocked(), reason="needs a kernel with Landlock")
@pytest.mark.parametrize("place", ["/tmp", "/dev/shm"])  # noqa: S108 - nothing comes to be there
def test_a_child_makes_no_file_and_no_folder(asked: LocalAnsweringProcess, place: str) -> None:
    name = f"{place}/repro-gate-{os.getpid()}"
    for attempt in (f"os.mkdir({name!r})", f"open({name!r}, 'x')"):
        assert failed(asked, f"told = {attempt}").startswith("PermissionError")
    assert not Path(name).exists()


@pytest.mark.parametrize("place", ["/tmp", "/var/tmp"])  # noqa: S108 - a folder of its own there
def test_it_sees_what_is_renamed_below_a_temporary_folder_after_its_start(
    place: str, system_python: str, account: Credentials
) -> None:
    # each run's folder takes the name of the one before; a layer over the place would keep that
    viewed = replace(account, guard=WriteGuard.MOUNT_NAMESPACE)
    request = replace(REQUEST, argv=(system_python, *REQUEST.argv[1:]), credentials=viewed)
    with tempfile.TemporaryDirectory(dir=place) as name, answering(request) as process:
        top = Path(name)
        top.chmod(0o755)
        try:
            process.wait_until_ready()
        except RunError as error:
            pytest.skip(f"no mount namespace here: {error.message}")
        for number in range(3):
            (top / "made").mkdir()
            (top / "made" / f"word{number}").write_text(str(number), "utf-8")
            (top / "made").rename(top / "run")
            assert told(process, f"told = os.listdir({str(top / 'run')!r})") == f"['word{number}']"
            (top / "run").rename(top / f"used{number}")


def test_a_child_does_not_look_for_garbage_that_ends_with_it(asked: LocalAnsweringProcess) -> None:
    assert told(asked, "import gc; told = gc.isenabled()") == "False"


def test_a_child_has_threads_and_signals_to_itself(asked: LocalAnsweringProcess) -> None:
    thread = "t = threading.Thread(target=kept.append, args=[1]); t.start(); t.join(); told = kept"
    assert told(asked, thread) == "[1]"
    assert asked.ask(b"os.abort()").exit_code == -signal.SIGABRT


@pytest.mark.parametrize(
    ("question", "exit_code"),
    [("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV), ("os._exit(7)", 7)],
)
def test_a_crash_ends_one_answer_alone(
    asked: LocalAnsweringProcess, question: str, exit_code: int
) -> None:
    before = parent_of_children(asked)
    assert asked.ask(question.encode()).exit_code == exit_code
    assert parent_of_children(asked) == before


def test_output_is_bounded_and_a_long_question_arrives(asked: LocalAnsweringProcess) -> None:
    result = asked.ask(b"told = 'x' * 1_000_000")
    assert (result.exit_code, result.output_bytes) == (0, 1_000_000)
    assert len(result.output) < 2 * REQUEST.output_limit_bytes
    assert told(asked, f"told = len({'x' * 300_000!r})") == "300000"


def test_when_it_is_killed_the_next_question_has_another() -> None:
    with answering() as process:
        first = parent_of_children(process)
        os.kill(first, signal.SIGKILL)
        os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
        second = parent_of_children(process)
        assert second != first
        assert descendants(second) == frozenset()


def test_a_child_without_end_is_ended_and_the_next_question_is_answered() -> None:
    with answering(replace(REQUEST, timeout_seconds=0.2)) as process:
        process.wait_until_ready()
        result = process.ask(b"import time; time.sleep(60)")
        assert result.timed_out
    with answering() as process:
        assert told(process, "told = 1") == "1"


def test_what_cannot_start_says_why_and_leaves_nothing() -> None:
    broken = replace(REQUEST, argv=(sys.executable, "-I", "-S", "-c", "raise SystemExit('broken')"))
    with answering(broken) as process, pytest.raises(RunError) as caught:
        process.ask(b"told = 1")
    assert caught.value.message == "broken"


def test_it_is_not_of_the_family_of_a_process_that_ends(asked: LocalAnsweringProcess) -> None:
    before = parent_of_children(asked)
    run(LocalProcesses())
    assert before not in descendants(os.getpid())
    assert parent_of_children(asked) == before


def run(processes: LocalProcesses) -> ProcessResult:
    argv = (sys.executable, "-I", "-S", "-c", "")
    return processes.run(replace(REQUEST, argv=argv), lambda _: None)


GATE = """
import sys, threading
sys.path.append({root!r})
from pathlib import Path
from gate.isolation.answering_client import LocalAnsweringProcess
from gate.isolation.stop_signals import StopSignals
from gate.isolation.process_request import ProcessRequest
process = LocalAnsweringProcess(ProcessRequest(argv={argv!r}, env={{}}, workdir=Path("/"),
    timeout_seconds=60.0, output_limit_bytes=1000), StopSignals())
print(process.ask(b"told = os.getppid()").output.decode(), flush=True)
process.ask(b"import time; time.sleep({busy})")
print("free", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("busy", [60, 0])
def test_it_ends_with_the_gate_however_that_ends(busy: int) -> None:
    program = GATE.format(root=str(ROOT), argv=REQUEST.argv, busy=busy)
    with subprocess.Popen(
        (sys.executable, "-c", program), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as gate:
        assert gate.stdout is not None
        reader = int(gate.stdout.readline())
        if busy:
            soon(lambda: bool(descendants(reader)))
        else:
            gate.stdout.readline()
        gate.kill()
    soon(lambda: not Path(f"/proc/{reader}").exists() or ended(reader))


def ended(pid: int) -> bool:
    """Nobody may be there to wait for it."""
    return "State:\tZ" in Path(f"/proc/{pid}/status").read_text("ascii")


def soon(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start another account's process")
def test_under_an_account_a_child_can_look_into_nobody(
    account: Credentials, system_python: str
) -> None:
    request = replace(REQUEST, argv=(system_python, *REQUEST.argv[1:]), credentials=account)
    with answering(request) as process:
        try:
            process.wait_until_ready()
        except RunError as fault:
            # the tests' packages lie in somebody's closed home
            pytest.skip(fault.message)
        parent = parent_of_children(process)
        assert told(process, "told = os.getuid()") == str(account.uid)
        for file in ("mem", "environ", "fd", "maps"):
            opener = "os.listdir" if file == "fd" else "open"
            attempt = f"told = {opener}('/proc/{parent}/{file}')"
            assert failed(process, attempt).startswith("PermissionError")
        assert failed(process, "os.setuid(0)").startswith("PermissionError")
    assert not Path(f"/proc/{parent}").exists()
