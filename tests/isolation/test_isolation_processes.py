"""Real processes, well-behaved and not: each ends, and nothing of it lives on."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gate.errors import RunError
from gate.isolation import processes as running_process
from gate.isolation.modes import Credentials
from gate.isolation.process_request import ProcessRequest, ProcessResult
from gate.isolation.process_table import PR_GET_DUMPABLE, owned_by, process_control, processes
from gate.isolation.processes import LocalProcesses, RunningProcess

PYTHON = sys.executable

Run = Callable[..., ProcessResult]


@pytest.fixture
def run(tmp_path: Path, lines: list[bytes]) -> Run:
    def start(
        *argv: str,
        seconds: float = 120,
        limit: int = 65536,
        env: dict[str, str] | None = None,
        account: Credentials | None = None,
    ) -> ProcessResult:
        request = ProcessRequest(
            argv=argv,
            env={"PATH": os.defpath, **(env or {})},
            workdir=tmp_path if account is None else Path("/"),
            timeout_seconds=seconds,
            output_limit_bytes=limit,
            credentials=account,
        )
        return LocalProcesses().run(request, lines.append)

    return start


def alive(pid: int) -> bool:
    return any(row.pid == pid and not row.ended for row in processes())


def test_output_exit_code_and_duration_are_told(run: Run, lines: list[bytes]) -> None:
    result = run("sh", "-c", "echo out; echo err >&2; exit 7")
    assert (result.exit_code, result.timed_out) == (7, False)
    assert result.output == b"out\nerr\n"
    assert result.output_bytes == 8
    assert lines == [b"out", b"err"]
    assert 0 < result.wall_seconds < 60


def test_a_signal_is_a_negative_exit_code(run: Run) -> None:
    assert run("sh", "-c", "kill -SEGV $$").exit_code == -signal.SIGSEGV


def test_the_environment_is_exactly_the_requested_one(run: Run) -> None:
    result = run(PYTHON, "-c", "import os; print(sorted(os.environ))", env={"ONLY": "this"})
    assert result.output == b"['LC_CTYPE', 'ONLY', 'PATH']\n"


def test_nothing_is_inherited(run: Run, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("wb") as secret:
        os.set_inheritable(secret.fileno(), True)
        program = "import os; print(os.listdir('/proc/self/fd'), os.readlink('/proc/self/fd/0'))"
        # the fourth is the listing itself
        assert run(PYTHON, "-c", program).output == b"['0', '1', '2', '3'] /dev/null\n"


def test_it_runs_in_its_folder_and_its_own_session_without_core_dumps(
    run: Run, tmp_path: Path
) -> None:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    program = (
        "import os, resource; "
        "print(os.getcwd(), os.getsid(0) == os.getpid(), resource.getrlimit(4)[0])"
    )
    assert run(PYTHON, "-c", program).output == f"{tmp_path} True 0\n".encode()
    assert resource.getrlimit(resource.RLIMIT_CORE) == before


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("no-such-command", "cannot start no-such-command: command not found"),
        ("./plain", "cannot start ./plain: permission denied"),
        ("./empty", "cannot start ./empty: Exec format error"),
        ("nul\0byte", "cannot start nul\\x00byte: embedded null byte"),
    ],
)
def test_a_command_that_cannot_start_is_named(
    run: Run, tmp_path: Path, command: str, message: str
) -> None:
    (tmp_path / "plain").touch(mode=0o644)
    (tmp_path / "empty").touch(mode=0o755)
    with pytest.raises(RunError) as caught:
        run(command)
    assert caught.value.message == message
    assert caught.value.hint


def test_a_command_of_the_checkout_that_is_not_there_is_said_to_be_in_no_commit(run: Run) -> None:
    with pytest.raises(RunError) as caught:
        run(".venv/bin/python")
    assert str(caught.value) == (
        "cannot start .venv/bin/python: command not found\n"
        "hint: The gate trains a clean checkout, and this file is not in the commit. If it is in a "
        "virtual environment that git ignores, activate that and write `python` in train.command."
    )


def test_a_missing_working_directory_is_named(tmp_path: Path) -> None:
    request = ProcessRequest(
        argv=("true",),
        env={},
        workdir=tmp_path / "gone",
        timeout_seconds=1,
        output_limit_bytes=4096,
    )
    with pytest.raises(RunError, match=r"the working directory .*gone is not a folder"):
        LocalProcesses().run(request, print)


def test_a_time_limit_ends_it_politely(run: Run) -> None:
    result = run("sh", "-c", "trap 'echo bye; exit 3' TERM; echo on; sleep 600 & wait", seconds=3)
    assert (result.timed_out, result.exit_code) == (True, 3)
    assert result.output == b"on\nbye\n"


def test_one_that_ignores_the_request_is_killed(run: Run) -> None:
    started = time.monotonic()
    result = run("sh", "-c", "trap '' TERM; while :; do sleep 1; done", seconds=0.3)
    assert (result.timed_out, result.exit_code) == (True, -signal.SIGKILL)
    assert time.monotonic() - started < 60


def test_a_child_that_keeps_the_pipe_open_does_not_hold_up_the_end(run: Run) -> None:
    started = time.monotonic()
    result = run("sh", "-c", "sleep 600 & echo $!")
    assert result.exit_code == 0
    assert time.monotonic() - started < 60
    assert not alive(int(result.output))


def test_a_daemon_that_left_its_group_is_found(run: Run, tmp_path: Path) -> None:
    program = (
        "import os, time, pathlib\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        pathlib.Path('daemon').write_text(str(os.getpid()))\n"
        "        time.sleep(60)\n"
        "    os._exit(0)\n"
        "while not os.path.exists('daemon') or not open('daemon').read(): time.sleep(0.01)\n"
    )
    assert run(PYTHON, "-c", program).exit_code == 0
    assert not alive(int((tmp_path / "daemon").read_text()))


def test_one_whose_first_thread_ended_still_lives(run: Run, tmp_path: Path) -> None:
    """The kernel calls such a process a zombie, but its other threads run on."""
    program = (
        "import ctypes, os, pathlib, threading, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "    pathlib.Path('pid').write_text(str(os.getpid()))\n"
        "    ctypes.CDLL(None).syscall(60, 0) if os.uname().machine == 'x86_64' else None\n"
        "while not os.path.exists('pid') or not open('pid').read(): time.sleep(0.01)\n"
        "time.sleep(0.1)\n"
    )
    assert run(PYTHON, "-c", program).exit_code == 0
    assert not alive(int((tmp_path / "pid").read_text()))


def test_one_that_closes_its_output_is_waited_for(run: Run, tmp_path: Path) -> None:
    result = run("sh", "-c", "exec >&- 2>&-; sleep 0.4; touch ended; exit 5")
    assert result.exit_code == 5
    assert (tmp_path / "ended").exists()


class Haunted(RunningProcess):
    """A table that always shows one more: no real process survives SIGKILL at will."""

    def _family(self, rows: object) -> frozenset[int]:
        return frozenset({2**22 + 1}) if rows else frozenset()


def test_a_run_with_an_undying_process_is_an_error() -> None:
    process = subprocess.Popen(("true",), stdout=subprocess.PIPE, start_new_session=True)  # noqa: S607 - the PATH of the tests
    with process, pytest.raises(RunError, match=r"could not be killed: \[4194305\]"):
        Haunted(process, None, frozenset()).end(print)


@pytest.mark.parametrize(("held", "seconds"), [("gpu0", 10.0), ("other", 2.0)])
def test_one_that_holds_a_gpu_has_longer_to_give_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: str, seconds: float
) -> None:
    given: list[float] = []

    def counting(*_: object, seconds: float) -> frozenset[int]:
        given.append(seconds)
        return frozenset()

    monkeypatch.setattr(running_process, "GPU_FILES", str(tmp_path / "gpu"))
    monkeypatch.setattr(running_process, "end_all", counting)
    with (tmp_path / held).open("w") as file:
        process = subprocess.Popen(
            ("sleep", "60"),  # noqa: S607 - the PATH of the tests
            stdin=file,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
    with process:
        RunningProcess(process, None, frozenset()).end(print)
    assert given == [seconds]


def test_a_fault_of_the_viewer_ends_the_training(tmp_path: Path) -> None:
    def broken(line: bytes) -> None:
        raise BrokenPipeError(line.decode())

    request = ProcessRequest(
        argv=("sh", "-c", "echo $$; sleep 600"),
        env={"PATH": os.defpath},
        workdir=tmp_path,
        timeout_seconds=120,
        output_limit_bytes=4096,
    )
    with pytest.raises(BrokenPipeError) as caught:
        LocalProcesses().run(request, broken)
    assert not alive(int(str(caught.value)))


def test_a_flood_neither_stalls_nor_fills_the_memory(run: Run, lines: list[bytes]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    result = run("sh", "-c", "yes 0123456789 | head -c 200000000; echo; echo end", limit=8192)
    assert time.monotonic() - started < 60
    assert result.output_bytes == 200_000_005
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000
    head, tail = result.output.split(b"\n[... 199991813 bytes left out ...]\n")
    assert (len(head), len(tail)) == (4096, 4096)
    assert tail.endswith(b"\nend\n")
    assert len(lines) < 1000
    assert any(line.endswith(b"lines not shown ...]") for line in lines)


def test_binary_output_comes_through(run: Run) -> None:
    program = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 16)"
    assert run(PYTHON, "-c", program).output == bytes(range(256)) * 16


def test_an_account_of_its_own_has_no_way_back(
    run: Run, system_python: str, account: Credentials
) -> None:
    program = (
        "import os; print(os.getresuid(), os.getresgid(), os.getgroups());"
        "print([l for l in open('/proc/self/status') if l.startswith(('NoNewPrivs', 'CapEff'))])"
    )
    ids, status = run(system_python, "-c", program, account=account).output.splitlines()
    assert ids == f"{(account.uid,) * 3} (60900, 60900, 60900) []".encode()
    assert status == b"['CapEff:\\t0000000000000000\\n', 'NoNewPrivs:\\t1\\n']"
    assert "NoNewPrivs:\t0" in Path("/proc/self/status").read_text()


def test_a_command_that_the_account_may_not_start_is_explained(
    run: Run, open_folder_for_all: Path, account: Credentials
) -> None:
    (open_folder_for_all / "tool").touch(mode=0o700)
    with pytest.raises(RunError) as caught:
        run(str(open_folder_for_all / "tool"), account=account)
    assert caught.value.hint.startswith(f"The account {account.uid} that the training runs under")


def test_every_process_of_the_account_is_ended(
    run: Run, system_python: str, account: Credentials
) -> None:
    """A chain that forks for ever and hides its owner: no list of ids can keep up with it."""
    program = (
        "import os, ctypes\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n"
        "while True:\n"
        "    if os.fork(): os._exit(0)\n"
    )
    assert run(system_python, "-c", program, account=account).exit_code == 0
    time.sleep(0.2)
    assert owned_by(account.uid) == frozenset()


def test_the_gates_memory_is_closed_while_a_training_runs(tmp_path: Path) -> None:
    before, during = process_control(PR_GET_DUMPABLE), []
    request = ProcessRequest(
        argv=("echo", "line"),
        env={"PATH": os.defpath},
        workdir=tmp_path,
        timeout_seconds=120,
        output_limit_bytes=4096,
    )
    LocalProcesses().run(request, lambda _: during.append(process_control(PR_GET_DUMPABLE)))
    assert (during, process_control(PR_GET_DUMPABLE)) == ([0], before)


@pytest.mark.usefixtures("root")
def test_closed_memory_is_closed_to_the_same_account() -> None:
    """Another process of the gate's own account, without root's capabilities, looks at it."""
    look = "p=/proc/$PPID; cat $p/environ; ls $p/fd; : <$p/mem"
    program = (
        "import os, subprocess\n"
        "from gate.isolation.process_table import PR_SET_DUMPABLE, closed_memory\n"
        "from gate.isolation.process_table import process_control\n"
        "os.setgroups([]); os.setresgid(60900, 60900, 60900); os.setresuid(60900, 60900, 60900)\n"
        "process_control(PR_SET_DUMPABLE, 1)\n"
        f"def look(): return subprocess.run(('/bin/sh', '-c', {look!r}), capture_output=True)\n"
        "print(b'CANARY' in look().stdout)\n"
        "with closed_memory(): seen = look()\n"
        "print(seen.stdout, seen.stderr.count(b'ermission denied'))\n"
    )
    env = {"SECRET": "CANARY", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run((PYTHON, "-c", program), env=env, capture_output=True, check=False)
    assert done.stdout.splitlines() == [b"True", b"b'' 3"], done.stderr
