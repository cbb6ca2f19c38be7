"""The sandbox launcher, for real: what a training behind it can and cannot do."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gate.errors import RunError
from gate.isolation import sandboxed_start
from gate.isolation.modes import Credentials
from gate.isolation.process_request import ProcessRequest, ProcessResult
from gate.isolation.process_table import owned_by, require_other_account
from gate.isolation.processes import LocalProcesses
from gate.isolation.sandboxed_start import LIMITS

TRY = """
import ctypes, errno, os, resource, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
def name(number): return errno.errorcode[number]
def made(family, kind=socket.SOCK_STREAM):
    try: socket.socket(family, kind).close()
    except OSError as error: return name(error.errno)
    return "made"
def called(*arguments):
    return "ok" if libc.syscall(*arguments) >= 0 else name(ctypes.get_errno())
"""

Sandboxed = Callable[..., ProcessResult]


@pytest.fixture
def sandboxed(system_python: str, account: Credentials) -> Sandboxed:
    """Run a Python program behind the sandbox launcher; what it prints is the answer."""

    def run(
        program: str, *, network: bool = False, workdir: Path = Path("/"), by_shell: bool = False
    ) -> ProcessResult:
        request = ProcessRequest(
            argv=("sh", "-c", program) if by_shell else (system_python, "-c", TRY + program),
            env={"PATH": os.defpath},
            workdir=workdir,
            timeout_seconds=120,
            output_limit_bytes=65536,
            credentials=account,
            network=network,
        )
        return LocalProcesses().run(request, lambda _: None)

    return run


def test_no_connection_can_be_made(sandboxed: Sandboxed) -> None:
    program = (
        "print(made(socket.AF_INET), made(socket.AF_INET, socket.SOCK_DGRAM),"
        " made(socket.AF_INET6), made(socket.AF_NETLINK, socket.SOCK_RAW), made(socket.AF_UNIX))\n"
        "[one.close() for one in socket.socketpair()]\n"
    )
    result = sandboxed(program)
    assert result.output == b"EACCES EACCES EACCES EACCES made\n"
    assert result.exit_code == 0


def test_a_training_of_ranks_can_be_given_the_network(sandboxed: Sandboxed) -> None:
    program = (
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(server.getsockname()).close()\n"
        "print(made(socket.AF_INET))\n"
    )
    assert sandboxed(program, network=True).output == b"made\n"


def test_io_uring_and_ways_into_other_processes_are_refused(sandboxed: Sandboxed) -> None:
    program = (
        "n = {'x86_64': (101, 310, 250), 'aarch64': (117, 270, 219)}[os.uname().machine]\n"
        "parent = os.getppid()\n"
        "print(called(425, 1, ctypes.create_string_buffer(120)), called(n[0], 16, parent),"
        " called(n[1], parent, 0, 0, 0, 0, 0), called(n[2], 0, -3, 0), called(438, 0, 0, 0))\n"
    )
    assert sandboxed(program).output == b"ENOSYS EPERM EPERM EPERM EPERM\n"


def test_what_the_kernel_counts_for_all_is_refused(sandboxed: Sandboxed) -> None:
    program = (
        "arm = os.uname().machine == 'aarch64'\n"
        "made, handle = ctypes.c_int(-1), struct.pack('IiQ', 8, 0xFE, 1)\n"
        "left, right = socket.socketpair()\n"
        "def option(ask, *words):\n"
        "    try: return ask(socket.SOL_SOCKET, *words)\n"
        "    except OSError as error: return name(error.errno)\n"
        "print(called((206, 0)[arm], 1, ctypes.create_string_buffer(8)),"
        " called(434, os.getpid(), 0), called((298, 241)[arm], bytes(128), 0, -1, -1, 0),"
        " called((304, 265)[arm], -10002, handle, 0),"
        " called((56, 220)[arm], 0x1011, 0, ctypes.byref(made), 0, 0),"
        " called(435, struct.pack('8Q', 0x1000, 0, 0, 0, 17, 0, 0, 0), 64))\n"
        "print(option(left.getsockopt, 77, 4), option(left.setsockopt, 76, 1),"
        " option(left.getsockopt, 57, 8), option(left.getsockopt, socket.SO_TYPE))\n"
    )
    assert sandboxed(program).output == (
        b"ENOSYS ENOSYS EPERM EPERM ENOSYS ENOSYS\nENOPROTOOPT ENOPROTOOPT ENOPROTOOPT 1\n"
    )


def test_every_way_in_which_libraries_start_a_process_goes_on_working(
    sandboxed: Sandboxed,
) -> None:
    program = """
import asyncio, multiprocessing, subprocess, sys, threading
from concurrent.futures import ProcessPoolExecutor
asked = [sys.executable, "-c", "print(7)"]
async def by_loop():
    made = await asyncio.create_subprocess_exec(*asked, stdout=subprocess.PIPE)
    return int((await made.communicate())[0]), await made.wait()
def spawned():
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {})
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
def forked():
    child = os.fork()
    if child == 0: os._exit(5)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
def passed_on():
    left, right = socket.socketpair()
    socket.send_fds(left, [b"x"], [1])
    peer = struct.unpack("3i", right.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return len(socket.recv_fds(right, 1, 1)[1]), peer[1] == os.getuid()
def pooled(kind):
    with ProcessPoolExecutor(1, multiprocessing.get_context(kind)) as pool:
        return pool.submit(abs, -3).result()
print(subprocess.run(asked, capture_output=True).stdout, os.system("exit 3") >> 8)
print(asyncio.run(by_loop()), spawned(), forked(), passed_on())
thread = threading.Thread(target=lambda: print("thread"))
thread.start(); thread.join()
print(pooled("fork"), pooled("spawn"), pooled("forkserver"))
"""
    assert sandboxed(program).output.decode().splitlines() == [
        "b'7\\n' 3",
        "(7, 0) 0 5 (1, True)",
        "thread",
        "3 3 3",
    ]


def test_what_it_starts_stays_in_the_sandbox(sandboxed: Sandboxed) -> None:
    program = (
        "import subprocess, sys\n"
        "print(subprocess.run([sys.executable, '-c', 'import socket; socket.socket()'],"
        " capture_output=True, text=True).stderr.splitlines()[-1])\n"
    )
    assert sandboxed(program).output == b"PermissionError: [Errno 13] Permission denied\n"


def test_limits_hold_and_cannot_be_raised(sandboxed: Sandboxed) -> None:
    program = (
        "for name in ('RLIMIT_CORE', 'RLIMIT_NPROC', 'RLIMIT_FSIZE', 'RLIMIT_NOFILE'):\n"
        "    kind = getattr(resource, name)\n"
        "    soft, hard = resource.getrlimit(kind)\n"
        "    try: resource.setrlimit(kind, (hard, hard + 1))\n"
        "    except (ValueError, OSError): print(name, hard)\n"
        "print(resource.getrlimit(resource.RLIMIT_AS)[1] == resource.RLIM_INFINITY)\n"
    )
    *rows, unlimited_memory = sandboxed(program).output.decode().splitlines()
    limits = dict(row.split() for row in rows)
    assert limits.keys() == LIMITS.keys()
    assert all(int(limits[name]) <= most for name, most in LIMITS.items())
    assert unlimited_memory == "True"


def test_a_fork_bomb_ends_at_the_limit_and_leaves_nothing(
    sandboxed: Sandboxed, account: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LIMITS, "RLIMIT_NPROC", 30)
    program = (
        "import signal, sys\n"
        "made = 0\n"
        "try:\n"
        "    while True:\n"
        "        if os.fork() == 0: signal.pause()\n"
        "        made += 1\n"
        "except BlockingIOError: print(made)\n"
    )
    assert sandboxed(program).output == b"29\n"
    assert owned_by(account.uid) == frozenset()


def test_a_file_that_grows_beyond_the_limit_ends_its_writer(
    sandboxed: Sandboxed, monkeypatch: pytest.MonkeyPatch, open_folder_for_all: Path
) -> None:
    monkeypatch.setitem(LIMITS, "RLIMIT_FSIZE", 4096)
    open_folder_for_all.chmod(0o777)
    result = sandboxed(
        "exec head -c 9999 /dev/zero >big", by_shell=True, workdir=open_folder_for_all
    )
    assert result.exit_code == -signal.SIGXFSZ
    assert (open_folder_for_all / "big").stat().st_size == 4096


def test_signals_that_the_interpreter_ignores_work_again(sandboxed: Sandboxed) -> None:
    result = sandboxed("kill -PIPE $$; echo ignored", by_shell=True)
    assert (result.exit_code, result.output) == (-signal.SIGPIPE, b"")


def test_an_account_has_the_groups_that_it_was_given_and_no_other(
    system_python: str, account: Credentials
) -> None:
    request = ProcessRequest(
        argv=(system_python, "-c", "import os; print(os.getgroups(), os.getegid())"),
        env={"PATH": os.defpath},
        workdir=Path("/"),
        timeout_seconds=120,
        output_limit_bytes=65536,
        credentials=replace(account, groups=(60944,)),
    )
    result = LocalProcesses().run(request, lambda _: None)
    assert result.output == b"[60944] 60900\n"


@pytest.mark.usefixtures("root")
def test_the_gates_own_group_is_never_given(account: Credentials) -> None:
    with pytest.raises(RunError, match="is not allowed for a training"):
        require_other_account(replace(account, groups=(os.getgid(),)))


def test_nothing_is_inherited(sandboxed: Sandboxed) -> None:
    program = (
        "print(os.listdir('/proc/self/fd'), os.readlink('/proc/self/fd/0'),"
        " os.getsid(0) == os.getpid())\n"
    )
    # the fourth is the listing itself
    assert sandboxed(program).output == b"['0', '1', '2', '3'] /dev/null True\n"


@pytest.mark.usefixtures("root")
def test_a_command_that_cannot_be_one_is_named(sandboxed: Sandboxed) -> None:
    with pytest.raises(RunError) as caught:
        sandboxed("nul\0byte", by_shell=True)
    assert caught.value.message == "cannot start sh: embedded null byte"


@pytest.mark.usefixtures("root")
def test_a_folder_that_the_account_may_not_enter_is_explained(
    sandboxed: Sandboxed, open_folder_for_all: Path
) -> None:
    open_folder_for_all.chmod(0o700)
    with pytest.raises(RunError) as caught:
        sandboxed("", workdir=open_folder_for_all)
    assert caught.value.message == (
        f"cannot start /usr/bin/python3: {open_folder_for_all} is closed to other accounts "
        "(mode 0700)"
    )
    assert f"chmod o+x {open_folder_for_all}" in caught.value.hint


def test_a_fence_that_cannot_be_put_up_is_an_error(
    sandboxed: Sandboxed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandboxed_start, "seccomp_filter", lambda *_, **__: b"no program")
    with pytest.raises(RunError) as caught:
        sandboxed("print('ran')")
    assert caught.value.message == (
        "the training cannot be sandboxed: refuse calls: Invalid argument"
    )
    assert caught.value.hint.startswith("Give the container Docker's default capabilities")


def test_a_gate_whose_own_file_is_missing_is_an_error(
    sandboxed: Sandboxed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandboxed_start, "PACKAGE_ROOT", Path("/no/such/folder"))
    with pytest.raises(RunError, match="ended early") as caught:
        sandboxed("print('ran')")
    assert caught.value.details[-1] == "ModuleNotFoundError: No module named 'gate'"
