"""Processes that live at the same time: each with its paths, its cores, its time, its end."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from gate.isolation.account_choice import unused_account
from gate.isolation.accounts import release_uid
from gate.isolation.modes import Credentials, Separation, WriteGuard
from gate.isolation.process_request import (
    PrivateFolder,
    ProcessGroup,
    ProcessRequest,
    ProcessResult,
    StartedProcess,
)
from gate.isolation.processes import LocalProcesses

FAR = 60.0


@pytest.fixture(autouse=True)
def _as_root(root: None) -> None:
    """Only root can show two processes the same path."""


@pytest.fixture
def other(root: None) -> Iterator[Credentials]:  # noqa: ARG001 - skips where it cannot be had
    taken = unused_account()
    assert taken is not None
    yield taken
    release_uid(taken.uid)


def request_in(folder: Path, name: str, *words: str, **more: object) -> ProcessRequest:
    """A shell's line in a place of its own, which is seen at `folder`/seen."""
    for path in (folder / "seen", folder / name):
        path.mkdir(exist_ok=True)
    return ProcessRequest(
        argv=("sh", "-c", " ".join(words)),
        env={"PATH": os.defpath},
        workdir=folder / "seen",
        timeout_seconds=more.pop("timeout_seconds", FAR),  # type: ignore[arg-type] # by name
        output_limit_bytes=4096,
        place=PrivateFolder(source=folder / name, target=folder / "seen"),
        **more,  # type: ignore[arg-type] # by name
    )


def ended(group: ProcessGroup, *started: StartedProcess) -> list[ProcessResult]:
    """Their results, once all of them have ended."""
    while any(one.result is None for one in started):
        group.follow(FAR)
    return [one.result for one in started if one.result is not None]


def test_two_at_the_same_path_have_files_and_cores_of_their_own(tmp_path: Path) -> None:
    line = "pwd; grep Cpus_allowed_list /proc/self/status; echo $$ > mine; ls; sleep 0.3; cat mine"
    with LocalProcesses().together() as group:
        both = [
            group.start(request_in(tmp_path, name, line, cpus=(core,)), lambda _: None)
            for name, core in (("one", 0), ("two", 1))
        ]
        for one in both:
            one.let_go()
        outputs = [result.output.decode().split() for result in ended(group, *both)]
    for (place, _, cores, listed, own), number in zip(outputs, "01", strict=True):
        assert (place, cores, listed) == (str(tmp_path / "seen"), number, "mine")
        assert own.isdigit()
    assert outputs[0][-1] != outputs[1][-1]
    assert not list((tmp_path / "seen").iterdir())


def test_one_without_an_account_of_its_own_has_the_limits_it_has_without_a_place(
    tmp_path: Path,
) -> None:
    placed = request_in(tmp_path, "placed", "ulimit -a; ulimit -Ha; ulimit -c")
    plain = replace(placed, place=None)
    here, beside = (LocalProcesses().run(one, lambda _: None).output for one in (plain, placed))
    assert here == beside
    assert here.endswith(b"\n0\n"), "no core dump"


def test_one_that_ended_before_its_turn_keeps_its_result(tmp_path: Path) -> None:
    """Others end meanwhile, and whoever ends takes leave of its own children alone."""
    processes = LocalProcesses()
    with processes.together() as group:
        early = group.start(request_in(tmp_path, "early", "echo early; exit 3"), lambda _: None)
        later = group.start(request_in(tmp_path, "later", "sleep 0.2; echo later"), lambda _: None)
        later.let_go()
        ended(group, later)
        plain = replace(request_in(tmp_path, "plain", "echo plain"), place=None)
        assert processes.run(plain, lambda _: None).output == b"plain\n"
        assert early.result is None
        early.let_go()
        (result,) = ended(group, early)
    assert (result.exit_code, result.output) == (3, b"early\n")


def test_what_one_started_is_ended_with_it_and_nothing_of_another(tmp_path: Path) -> None:
    line = "setsid sleep 600 & echo $!; {}"
    with LocalProcesses().together() as group:
        lives = group.start(request_in(tmp_path, "lives", line.format("wait")), lambda _: None)
        ends = group.start(request_in(tmp_path, "ends", line.format("exit 0")), lambda _: None)
        lives.let_go()
        ends.let_go()
        (result,) = ended(group, ends)
        assert not _alive(int(result.output))
        assert lives.result is None
        lives.stop()
        (result,) = ended(group, lives)
        assert not _alive(int(result.output))


def _alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return b"State:\tZ" not in Path(f"/proc/{pid}/status").read_bytes()
    return False


def test_time_counts_from_the_word_to_go(tmp_path: Path) -> None:
    with LocalProcesses().together() as group:
        waits = "while [ ! -e go ]; do sleep 0.01; done; echo done"
        request = request_in(tmp_path, "one", waits, timeout_seconds=3)
        one = group.start(request, lambda _: None)
        # longer than it may take, so that any time counted before the word would end it
        time.sleep(3.1)
        (tmp_path / "one" / "go").touch()
        one.let_go()
        (result,) = ended(group, one)
    assert result.output == b"done\n"
    assert not result.timed_out
    assert result.wall_seconds < 3


def test_nothing_is_left_when_the_body_ends(tmp_path: Path) -> None:
    with LocalProcesses().together() as group:
        for name in ("one", "two"):
            group.start(request_in(tmp_path, name, "echo $$ > pid; sleep 600"), lambda _: None)
        pids = [_number(tmp_path / name / "pid") for name in ("one", "two")]
    assert not any(map(_alive, pids))


def _number(path: Path) -> int:
    while not (path.exists() and path.read_text().strip()):
        time.sleep(0.01)
    return int(path.read_text())


def test_accounts_beside_each_other_see_no_process_and_reach_no_socket(
    open_folder_for_all: Path, account: Credentials, other: Credentials, system_python: str
) -> None:
    """What one run writes into a name, or says in a socket without a file, no other can read."""
    speaks = (
        "import socket, time; s = socket.socket(socket.AF_UNIX); s.bind('\\0word'); s.listen();"
        "print('bound', flush=True); time.sleep(600)"
    )
    listens = (
        "import os, socket\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "try: s.connect('\\0word'); print('reached')\n"
        "except OSError as error: print(type(error).__name__)\n"
        "print(sorted({os.stat('/proc/' + n).st_uid for n in os.listdir('/proc') if n.isdigit()}))"
    )
    heard: list[bytes] = []
    with LocalProcesses().together() as group:
        requests = [
            replace(
                request_in(open_folder_for_all, name, ""),
                argv=(system_python, "-c", script),
                credentials=replace(who, guard=WriteGuard.MOUNT_NAMESPACE, own=tuple(Separation)),
                writable=(open_folder_for_all / "seen",),
            )
            for name, script, who in (("one", speaks, account), ("two", listens, other))
        ]
        speaker = group.start(requests[0], heard.append)
        speaker.let_go()
        while not heard:
            group.follow(0.05)
        listener = group.start(requests[1], lambda _: None)
        listener.let_go()
        (result,) = ended(group, listener)
    assert result.output.decode().splitlines() == ["ConnectionRefusedError", f"[{other.uid}]"]


def test_one_that_lives_on_sees_what_takes_the_place_of_a_folder_in_a_temporary_one(
    open_folder_for_all: Path, account: Credentials, system_python: str
) -> None:
    """Else the process that reads every run of a call would read the first one twice."""
    script = (
        "import pathlib, sys, time\n"
        "word = pathlib.Path(sys.argv[1], 'run', 'word')\n"
        "while True:\n"
        "    print(word.read_text() if word.exists() else 'none', flush=True)\n"
        "    time.sleep(0.02)\n"
    )
    for name in ("run", "next"):
        (open_folder_for_all / name).mkdir()
        (open_folder_for_all / name / "word").write_text(name)
    heard: list[bytes] = []
    request = ProcessRequest(
        argv=(system_python, "-c", script, str(open_folder_for_all)),
        env={"PATH": os.defpath},
        workdir=Path("/"),
        timeout_seconds=FAR,
        output_limit_bytes=4096,
        credentials=replace(account, guard=WriteGuard.MOUNT_NAMESPACE),
    )
    with LocalProcesses().together() as group:
        group.start(request, heard.append).let_go()
        while b"run" not in heard:
            group.follow(0.05)
        (open_folder_for_all / "run").rename(open_folder_for_all / "used")
        (open_folder_for_all / "next").rename(open_folder_for_all / "run")
        end = time.monotonic() + FAR
        while b"next" not in heard and time.monotonic() < end:
            group.follow(0.05)
    assert b"next" in heard


def test_one_that_cannot_be_started_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    with LocalProcesses().together() as group:
        one = group.start(request_in(tmp_path, "one", "sleep 0.2; echo on"), lambda _: None)
        with pytest.raises(Exception, match="cannot start no-such-program: command not found"):
            group.start(
                replace(request_in(tmp_path, "two", ""), argv=("no-such-program",)), lambda _: None
            )
        one.let_go()
        assert [result.output for result in ended(group, one)] == [b"on\n"]


def test_a_view_is_told_from_a_later_one_with_the_same_number(tmp_path: Path) -> None:
    """The kernel gives the number of a namespace again as soon as nobody is in it."""
    with LocalProcesses().together() as group:
        short = group.start(request_in(tmp_path, "short", "exit 0"), lambda _: None)
        time.sleep(0.2)
        long = group.start(request_in(tmp_path, "long", "sleep 0.3; echo alive"), lambda _: None)
        short.let_go()
        ended(group, short)
        long.let_go()
        assert [result.output for result in ended(group, long)] == [b"alive\n"]
    assert subprocess.run(("true",), check=False).returncode == 0  # noqa: S607 - children are waited for
