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
from hypothesis import given
from hypothesis import strategies as st

from gate.edges.output_capture import LINE_LIMIT_BYTES, LineFeed, OutputCapture
from gate.edges.process_table import (
    descendants,
    end_all,
    kill,
    owned_by,
    process_control,
    processes,
    reap,
    require_other_account,
)
from gate.edges.processes import LocalProcesses
from gate.edges.running_process import RunningProcess
from gate.errors import RunError
from gate.records.runs import Credentials, ProcessRequest, ProcessResult

PYTHON = sys.executable
# one that every account may start; the tests' own often lies in somebody's home
SYSTEM_PYTHON = "/usr/bin/python3"
ACCOUNT = Credentials(uid=61090, gid=61091)

Run = Callable[..., ProcessResult]


@pytest.fixture
def run(tmp_path: Path, lines: list[bytes]) -> Run:
    def start(
        *argv: str,
        seconds: float = 20,
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


@pytest.fixture
def system_python(root: None) -> str:
    if not Path(SYSTEM_PYTHON).exists():
        pytest.skip("no interpreter that another account can reach")
    return SYSTEM_PYTHON


def alive(pid: int) -> bool:
    return any(row.pid == pid and not row.ended for row in processes())


def test_output_exit_code_and_duration_are_told(run: Run, lines: list[bytes]) -> None:
    result = run("sh", "-c", "echo out; echo err >&2; exit 7")
    assert (result.exit_code, result.timed_out) == (7, False)
    assert result.output == b"out\nerr\n"
    assert result.output_bytes == 8
    assert lines == [b"out", b"err"]
    assert 0 < result.wall_seconds < 5


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
    result = run("sh", "-c", "pwd; ps -o sid= -p $$; echo $$; ulimit -c")
    folder, session, pid, core = result.output.split()
    assert (folder, session, core) == (str(tmp_path).encode(), pid, b"0")
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


def test_a_missing_working_directory_is_named(tmp_path: Path) -> None:
    request = ProcessRequest(
        argv=("true",),
        env={},
        workdir=tmp_path / "gone",
        timeout_seconds=1,
        output_limit_bytes=4096,
    )
    with pytest.raises(RunError, match="the working directory .*gone is not a folder"):
        LocalProcesses().run(request, print)


def test_a_time_limit_ends_it_politely(run: Run) -> None:
    result = run("sh", "-c", "trap 'echo bye; exit 3' TERM; echo on; sleep 60 & wait", seconds=0.5)
    assert (result.timed_out, result.exit_code) == (True, 3)
    assert result.output == b"on\nbye\n"


def test_one_that_ignores_the_request_is_killed(run: Run) -> None:
    started = time.monotonic()
    result = run("sh", "-c", "trap '' TERM; while :; do sleep 1; done", seconds=0.3)
    assert (result.timed_out, result.exit_code) == (True, -signal.SIGKILL)
    assert time.monotonic() - started < 8


def test_a_child_that_keeps_the_pipe_open_does_not_hold_up_the_end(run: Run) -> None:
    started = time.monotonic()
    result = run("sh", "-c", "sleep 60 & echo $!")
    assert result.exit_code == 0
    assert time.monotonic() - started < 3
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


def test_one_that_closes_its_output_is_waited_for(run: Run) -> None:
    result = run("sh", "-c", "exec >&- 2>&-; sleep 0.4; exit 5")
    assert result.exit_code == 5
    assert result.wall_seconds >= 0.4


def test_what_outlives_everything_is_told() -> None:
    found = end_all(lambda: frozenset({4711}), lambda _: None, seconds=0.1)
    assert found == {4711}


class Haunted(RunningProcess):
    """A table that always shows one more: no real process survives SIGKILL at will."""

    def _family(self) -> frozenset[int]:
        return frozenset({2**22 + 1})


def test_a_run_with_an_undying_process_is_an_error() -> None:
    process = subprocess.Popen(("true",), stdout=subprocess.PIPE, start_new_session=True)  # noqa: S607 - the PATH of the tests
    with process, pytest.raises(RunError, match=r"could not be ended: \[4194305\]"):
        Haunted(process, None, frozenset()).end(print)


def test_a_fault_of_the_viewer_ends_the_training(tmp_path: Path) -> None:
    def broken(line: bytes) -> None:
        raise BrokenPipeError(line.decode())

    request = ProcessRequest(
        argv=("sh", "-c", "echo $$; sleep 60"),
        env={"PATH": os.defpath},
        workdir=tmp_path,
        timeout_seconds=20,
        output_limit_bytes=4096,
    )
    with pytest.raises(BrokenPipeError) as caught:
        LocalProcesses().run(request, broken)
    assert not alive(int(str(caught.value)))


def test_a_flood_neither_stalls_nor_fills_the_memory(run: Run, lines: list[bytes]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    result = run("sh", "-c", "yes 0123456789 | head -c 200000000; echo; echo end", limit=8192)
    assert time.monotonic() - started < 10
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


def test_an_account_of_its_own_has_no_way_back(run: Run, system_python: str) -> None:
    program = (
        "import os; print(os.getresuid(), os.getresgid(), os.getgroups());"
        "print([l for l in open('/proc/self/status') if l.startswith(('NoNewPrivs', 'CapEff'))])"
    )
    ids, status = run(system_python, "-c", program, account=ACCOUNT).output.splitlines()
    assert ids == b"(61090, 61090, 61090) (61091, 61091, 61091) []"
    assert status == b"['CapEff:\\t0000000000000000\\n', 'NoNewPrivs:\\t1\\n']"
    assert "NoNewPrivs:\t0" in Path("/proc/self/status").read_text()


def test_a_command_that_the_account_may_not_start_is_explained(
    root: None, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "tool").touch(mode=0o700)
    with pytest.raises(RunError) as caught:
        run(str(tmp_path / "tool"), account=ACCOUNT)
    assert caught.value.hint.startswith("The account 61090 that the training runs under")


def test_every_process_of_the_account_is_ended(run: Run, system_python: str) -> None:
    """A chain that forks for ever and hides its owner: no list of ids can keep up with it."""
    program = (
        "import os, ctypes\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n"
        "while True:\n"
        "    if os.fork(): os._exit(0)\n"
    )
    assert run(system_python, "-c", program, account=ACCOUNT).exit_code == 0
    time.sleep(0.2)
    assert owned_by(ACCOUNT.uid) == frozenset()


@pytest.mark.parametrize("uid", [0, -1, 2**32 - 1, os.getuid()])
def test_an_account_that_must_not_be_ended_is_refused(uid: int) -> None:
    for account in (Credentials(uid=uid, gid=61091), Credentials(uid=61090, gid=uid)):
        with pytest.raises(RunError, match="is none that a training may run under"):
            require_other_account(account)


def test_a_process_that_is_gone_cannot_be_killed_twice() -> None:
    kill([2**22 + 1])


def test_adopted_children_are_taken_leave_of() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    reap(but=frozenset({pid}))
    assert any(row.pid == pid for row in processes())
    reap(but=frozenset())
    assert not any(row.pid == pid for row in processes())


def test_a_missing_switch_is_told() -> None:
    assert not process_control(-1)


def test_relatives_are_found_over_generations(run: Run) -> None:
    program = "import os,time; os.fork() or (os.fork() or time.sleep(0.3)); time.sleep(0.3)"
    pid = os.posix_spawn(PYTHON, [PYTHON, "-c", program], dict(os.environ))
    deadline = time.monotonic() + 5
    while len(descendants(pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(descendants(pid)) == 2
    os.waitpid(pid, 0)


@given(st.lists(st.binary(max_size=50)), st.integers(2, 64))
def test_what_is_kept_is_the_head_and_the_tail(pieces: list[bytes], limit: int) -> None:
    capture = OutputCapture(limit)
    for piece in pieces:
        capture.feed(piece)
    whole = b"".join(pieces)
    cut = len(whole) - limit
    marker = b"\n[... %d bytes left out ...]\n" % cut
    tail = whole[limit // 2 + max(cut, 0) :]
    assert capture.total_bytes == len(whole)
    assert capture.content() == (whole[: limit // 2] + marker + tail if cut > 0 else whole)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=10))
def test_lines_do_not_depend_on_how_they_come(text: bytes, cuts: list[int]) -> None:
    shown: list[bytes] = []
    feed = LineFeed(shown.append)
    edges = sorted({0, *cuts, len(text)})
    for start, end in zip(edges, edges[1:], strict=False):
        feed.feed(text[start:end])
    feed.finish()
    expected = [line for line in text.replace(b"\r", b"\n").split(b"\n") if line][:200]
    assert shown[: len(expected)] == expected[:200]


def test_a_long_line_is_cut() -> None:
    shown: list[bytes] = []
    feed = LineFeed(shown.append)
    for _ in range(10):
        feed.feed(b"x" * 3000)
    feed.feed(b"\nnext\n")
    feed.finish()
    assert shown == [b"x" * LINE_LIMIT_BYTES, b"next"]


def test_lines_come_again_when_the_flood_is_over() -> None:
    shown: list[bytes] = []
    times = iter([0.0, 0.0, 0.0, 10.0])
    feed = LineFeed(shown.append, clock=lambda: next(times))
    feed.feed(b"a\n" * 250)
    feed.feed(b"b\n" * 5)
    feed.feed(b"c\n")
    assert shown[199:] == [b"a", b"[... 55 lines not shown ...]", b"c"]
