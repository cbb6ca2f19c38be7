"""Two runs at the same time: no channel of the kernel's leads from one to the other.

Each channel is tried with and without what a run has of its own: what leads nowhere in either would
show nothing.
"""

from __future__ import annotations

import errno
import os
import pickle
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gate.errors import RunError
from gate.isolation.account_choice import unused_account
from gate.isolation.accounts import release_uid
from gate.isolation.modes import Credentials, Separation, WriteGuard
from gate.isolation.page_cache import PREFIX, CacheGroup, cache_left_by, new_proof
from gate.isolation.private_view import Own
from gate.isolation.process_request import ProcessRequest, ProcessResult, ReadOnlyMount
from gate.isolation.process_table import owned_by, processes
from gate.isolation.processes import LocalProcesses
from gate.isolation.sandbox_launcher import MOUNT_NAMESPACE

FAR = 60.0
Ended = Callable[..., ProcessResult]
COMMON = """
import array, ctypes, fcntl, glob, os, pathlib, select, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
SHARED = ["/etc/passwd", "/dev/null", "/usr/bin", "/sys/kernel/mm", sys.argv[1], os.__file__]
SHARED = [path for path in SHARED if os.access(path, os.R_OK)]
"""
# does what can be noticed, says that it does, and goes on
SPEAKER = """
for path in SHARED: fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX)
if libc.fcntl(os.open(sys.argv[1], os.O_RDONLY), 0x402, 0x80000000 | 1) < 0: print("no dnotify")
own = open("own", "w")
fcntl.fcntl(own, fcntl.F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0))
os.nice(7)
terminals = [os.openpty() for _ in range(5)]
abstract = socket.socket(socket.AF_UNIX)
abstract.bind("\\0word")
abstract.listen()
print("speaks", flush=True)
while True:
    for path in SHARED: os.close(os.open(path, os.O_RDONLY))
    time.sleep(0.01)
"""
# one line for each channel, and how much came by it
LISTENER = """
def held(path):
    try: fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError: return 1
    return 0
def events():
    watch = libc.inotify_init1(0)
    for path in SHARED: libc.inotify_add_watch(watch, path.encode(), 0x20)
    ready, _, _ = select.select([watch], [], [], 0.5)
    return len(os.read(watch, 65536)) if ready else 0
def by_number(ask):
    found = 0
    for pid in range(1, os.getpid() + 5000):
        try: ask(pid)
        except PermissionError: found += 1
        except OSError: pass
        else: found += 1
    return found
own = len([name for name in os.listdir("/proc") if name.isdigit()])
def reached():
    try: socket.socket(socket.AF_UNIX).connect("\\0word")
    except OSError: return 0
    return 1
def nices():
    # the tests themselves may have been started with another than that of the machine
    theirs = libc.getpriority(0, 0) + 7
    return sum(libc.getpriority(0, pid) == theirs for pid in range(1, os.getpid() + 5000))
def count(path):
    try: return int(pathlib.Path(path).read_text().split()[0] or 0)
    except (OSError, IndexError): return 0
print("rows of locks", len(pathlib.Path("/proc/locks").read_text().splitlines()))
print("locks", sum(map(held, SHARED)))
print("watches", events())
print("signals", by_number(lambda pid: os.kill(pid, 0)) - 2)
print("cores", by_number(os.sched_getaffinity) - 2)
print("sessions", by_number(os.getsid) - 2)
print("priorities", nices())
print("processes", own - 2)
print("terminals", len(os.listdir("/dev/pts")) - 1)
print("count of terminals", count("/proc/sys/kernel/pty/nr"))
print("open files", count("/proc/sys/fs/file-nr"))
print("socket", reached())
"""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one of two runs needs."""

    account: Credentials
    folder: Path


@pytest.fixture
def runs(open_folder_for_all: Path, root: None) -> Iterator[tuple[Run, ...]]:  # noqa: ARG001 - skips
    made = []
    for name in ("speaker", "listener"):
        account = unused_account()
        assert account is not None
        folder = open_folder_for_all / name
        folder.mkdir()
        os.chown(folder, account.uid, account.uid)
        made.append(Run(account=account, folder=folder))
    (open_folder_for_all / "data").mkdir()
    (open_folder_for_all / "data" / "mini.csv").write_text("1")
    yield tuple(made)
    for run in made:
        release_uid(run.account.uid)


def request_of(run: Run, script: str, own: tuple[Separation, ...]) -> ProcessRequest:
    data = run.folder.parent / "data" / "mini.csv"
    (run.folder / "mini.csv").touch()
    return ProcessRequest(
        argv=("/usr/bin/python3", "-c", COMMON + script, str(run.folder / "mini.csv")),
        env={"PATH": os.defpath},
        workdir=run.folder,
        timeout_seconds=FAR,
        output_limit_bytes=65536,
        credentials=replace(run.account, guard=WriteGuard.MOUNT_NAMESPACE, own=own),
        writable=(run.folder,),
        mounts=(ReadOnlyMount(source=data, target=run.folder / "mini.csv"),),
    )


def heard_by(runs: tuple[Run, ...], own: tuple[Separation, ...]) -> dict[str, int]:
    """What came to the listener, by the name of the channel."""
    heard: list[bytes] = []
    with LocalProcesses().together() as group:
        speaker = group.start(request_of(runs[0], SPEAKER, own), heard.append)
        speaker.let_go()
        while b"speaks" not in heard:
            group.follow(0.05)
            assert speaker.result is None, heard
        listener = group.start(request_of(runs[1], LISTENER, own), lambda _: None)
        listener.let_go()
        while listener.result is None:
            group.follow(FAR)
    assert listener.result.exit_code == 0, listener.result.output.decode()
    lines = listener.result.output.decode().splitlines()
    return {name: int(number) for name, _, number in (line.rpartition(" ") for line in lines)}


def test_no_channel_leads_from_one_run_to_another(runs: tuple[Run, ...]) -> None:
    heard = heard_by(runs, tuple(Separation))
    assert heard == dict.fromkeys(heard, 0)
    assert len(heard) == 12


def test_without_views_of_their_own_every_channel_does(runs: tuple[Run, ...]) -> None:
    heard = heard_by(runs, ())
    assert [name for name, came in heard.items() if not came] == []


def test_a_service_of_the_machine_answers_by_no_file(runs: tuple[Run, ...]) -> None:
    """Its socket is an inode of the machine's, and a run's inodes are its own."""
    # beside the temporary folders, over which every run has a layer
    with (
        tempfile.TemporaryDirectory(dir="/run") as folder,
        socket.socket(socket.AF_UNIX) as service,
    ):
        at = Path(folder, "service")
        at.parent.chmod(0o755)
        service.bind(str(at))
        at.chmod(0o777)
        service.listen()
        asking = f"print(socket.socket(socket.AF_UNIX).connect_ex({str(at)!r}))"
        answers = [
            LocalProcesses().run(request_of(runs[0], asking, own), lambda _: None).output
            for own in ((), tuple(Separation))
        ]
    assert answers == [b"0\n", f"{errno.ECONNREFUSED}\n".encode()]


def test_the_launcher_has_the_words_of_the_records() -> None:
    """It imports from the standard library alone, so it has them twice."""
    # the cache is the gate's to empty
    words = {value for name, value in vars(Own).items() if name.isupper()}
    assert words == {*Separation} - {Separation.CACHE}
    assert MOUNT_NAMESPACE == WriteGuard.MOUNT_NAMESPACE


WAYS = [(), tuple(Separation)]
# reads those of the files whose numbers it is given
READER = """
folder = pathlib.Path(sys.argv[1]).parents[1] / "word"
for number in sys.argv[2:]: (folder / number).read_bytes()
"""
# those that are in memory already: touching them makes no major fault
ASKER = """
import mmap, resource
def waited(path):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as seen:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        seen[0]
        return resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before
folder = pathlib.Path(sys.argv[1]).parents[1] / "word"
print(*[number for number in range(32) if not waited(folder / str(number))])
"""
# takes all of it out of memory, if it is let
EVICTOR = """
for path in (pathlib.Path(sys.argv[1]).parents[1] / "word").iterdir():
    os.posix_fadvise(os.open(path, os.O_RDONLY), 0, 0, os.POSIX_FADV_DONTNEED)
"""


@pytest.fixture
def word(runs: tuple[Run, ...]) -> Path:
    """Files that each run can read, and that are not in memory."""
    folder = runs[0].folder.parent / "word"
    folder.mkdir()
    try:
        for number in range(32):
            new_proof(folder / str(number))
    except RunError as error:
        pytest.skip(error.message)
    return folder


def run_after(run: Run, script: str, own: tuple[Separation, ...], *numbers: int) -> tuple[int, ...]:
    request = request_of(run, script, own)
    request = replace(request, argv=(*request.argv, *map(str, numbers)))
    result = LocalProcesses().run(request, lambda _: None)
    assert result.exit_code == 0, result.output.decode()
    return tuple(map(int, result.output.split()))


@pytest.mark.usefixtures("word")
@pytest.mark.parametrize("said", [(), (1, 2, 13, 31)])
def test_no_run_sees_what_the_one_before_read(runs: tuple[Run, ...], said: tuple[int, ...]) -> None:
    run_after(runs[0], READER, tuple(Separation), *said)
    assert run_after(runs[1], ASKER, tuple(Separation)) == ()


@pytest.mark.usefixtures("word")
def test_without_a_cache_of_its_own_it_is_told_a_number(runs: tuple[Run, ...]) -> None:
    own = tuple(one for one in Separation if one is not Separation.CACHE)
    run_after(runs[0], READER, own, 1, 2, 13, 31)
    assert run_after(runs[1], ASKER, own) == (1, 2, 13, 31)


def test_no_run_takes_out_of_memory_what_was_there(runs: tuple[Run, ...], word: Path) -> None:
    every = tuple(word.iterdir())
    for path in every:
        path.read_bytes()
    run_after(runs[0], READER + EVICTOR, tuple(Separation), *range(32))
    assert all(map(cache_left_by, every))
    script = COMMON + EVICTOR
    line = ("/usr/bin/python3", "-c", script, str(runs[0].folder / "mini.csv"))
    subprocess.run(line, check=True, timeout=FAR)
    assert not any(map(cache_left_by, every))


def test_what_a_run_beside_still_uses_goes_when_that_ends(
    runs: tuple[Run, ...], word: Path
) -> None:
    """And nothing is left of the groups."""
    holds = """
import mmap
held = [mmap.mmap(os.open(path, os.O_RDONLY), 0, prot=mmap.PROT_READ)
    for path in (pathlib.Path(sys.argv[1]).parents[1] / "word").iterdir()]
print("holds", sum(one[0] for one in held) >= 0, flush=True)
while not pathlib.Path("end").exists(): sum(one[0] for one in held); time.sleep(0.01)
"""
    heard: list[bytes] = []
    before = groups_left()
    with LocalProcesses().together() as group:
        beside = group.start(request_of(runs[0], holds, tuple(Separation)), heard.append)
        beside.let_go()
        while not heard:
            group.follow(0.05)
        run_after(runs[1], READER, tuple(Separation), *range(32))
        assert all(map(cache_left_by, word.iterdir()))
        (runs[0].folder / "end").touch()
        while beside.result is None:
            group.follow(0.05)
    assert not any(map(cache_left_by, word.iterdir()))
    assert groups_left() == before


def groups_left() -> set[Path]:
    group = CacheGroup()
    # of this process: another one that tests beside it has its own
    own = f"{PREFIX}*-{os.getpid()}-*"
    found = set(group.door.parents[1].glob(own)) - {group.door.parent}
    group.forget()
    return found


@pytest.fixture
def ended_by(runs: tuple[Run, ...]) -> Ended:
    """How a shell's line ends under an account, with its own or without."""

    def run(line: str, own: tuple[Separation, ...], *, seconds: float = FAR) -> ProcessResult:
        request = replace(
            request_of(runs[0], "", own),
            argv=("sh", "-c", line),
            timeout_seconds=seconds,
            mounts=(),
        )
        return LocalProcesses().run(request, lambda _: None)

    return run


@pytest.mark.parametrize("own", WAYS)
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("exit 0", 0),
        ("exit 255", 255),
        ("kill -KILL $$", -9),
        ("kill -SEGV $$", -11),
        ("kill -TERM $$", -15),
    ],
)
def test_a_run_ends_alike_with_processes_of_its_own(
    ended_by: Ended, own: tuple[Separation, ...], line: str, code: int
) -> None:
    result = ended_by(line, own)
    assert (result.exit_code, result.timed_out) == (code, False)


@pytest.mark.parametrize("own", WAYS)
def test_a_run_that_takes_too_long_is_asked_first(
    ended_by: Ended, own: tuple[Separation, ...]
) -> None:
    line = "trap 'echo asked; exit 3' TERM; echo begun; while :; do sleep 0.05; done"
    result = ended_by(line, own, seconds=5.0)
    assert (result.timed_out, result.exit_code) == (True, 3)
    assert result.output.splitlines()[-1] == b"asked"


def test_orphans_are_taken_leave_of(ended_by: Ended) -> None:
    line = "(sleep 0.05 & sleep 0.05 &); sleep 0.4; ps -o stat= -u $(id -u) | grep -c Z"
    assert ended_by(line, tuple(Separation)).output == b"0\n"


def test_a_run_is_a_session_of_its_own_below_a_closed_first_process(ended_by: Ended) -> None:
    line = (
        "echo $PPID $$ $(ps -o pgid=,sid= -p $$); kill -KILL 1; kill -STOP 1; "
        "ls /proc/1/fd >/dev/null 2>&1 || echo closed; cat /proc/1/environ 2>/dev/null; echo on"
    )
    result = ended_by(line, tuple(Separation))
    assert result.output.decode().split() == ["1", "2", "2", "2", "closed", "on"]


def test_nothing_of_a_run_outlives_the_process_that_waits_for_it(runs: tuple[Run, ...]) -> None:
    heard: list[bytes] = []
    request = replace(
        request_of(runs[0], "", tuple(Separation)),
        argv=("sh", "-c", "setsid sleep 600 & echo begun; wait"),
        mounts=(),
    )
    with LocalProcesses().together() as group:
        started = group.start(request, heard.append)
        started.let_go()
        while b"begun" not in heard:
            group.follow(0.05)
        uid = runs[0].account.uid
        (outside,) = {row.parent for row in processes() if uid in row.uids} - owned_by(uid)
        os.kill(outside, signal.SIGKILL)
        while started.result is None:
            group.follow(0.05)
        assert started.result.exit_code == -signal.SIGKILL
        assert owned_by(uid) == frozenset()


def test_what_an_engine_hid_or_laid_over_stays_so_without_being_shared(
    runs: tuple[Run, ...], tmp_path: Path
) -> None:
    """As a container's engine does it: files over files, an empty folder, a device by itself."""
    (tmp_path / "hosts").write_text("127.0.0.1 engine\n")
    laid = [
        ["--bind", str(tmp_path / "hosts"), "/etc/hosts"],
        ["--bind", "/dev/null", "/proc/kallsyms"],
        ["-t", "tmpfs", "-o", "ro,size=0", "tmpfs", "/proc/fs"],
        ["--bind", "/dev/zero", "/dev/full"],
    ]
    line = (
        "cat /etc/hosts; wc -c </proc/kallsyms; ls /proc/fs | wc -l; stat -c %t:%T /dev/full; "
        "stat -c %d:%i /etc/hosts /dev/full /proc/kallsyms /proc/fs"
    )
    program = (
        "import pickle, sys\n"
        "from gate.isolation.processes import LocalProcesses\n"
        "request = pickle.loads(sys.stdin.buffer.read())\n"
        "sys.stdout.buffer.write(LocalProcesses().run(request, lambda _: None).output)\n"
    )
    request = replace(
        request_of(runs[0], "", tuple(Separation)), argv=("sh", "-c", line), mounts=()
    )
    mounted = "; ".join(f"mount {shlex.join(words)}" for words in laid)
    inside = shlex.join((sys.executable, "-c", program))
    seen = "stat -c %d:%i /etc/hosts /dev/full /proc/kallsyms /proc/fs"
    done = subprocess.run(
        ("/usr/bin/unshare", "-m", "sh", "-ec", f"{mounted}; {inside}; {seen}"),
        input=pickle.dumps(request),
        capture_output=True,
        check=True,
        timeout=FAR,
    )
    lines = done.stdout.decode().splitlines()
    assert lines[:4] == ["127.0.0.1 engine", "0", "0", "1:5"]
    of_the_run, of_the_machine = lines[4:8], lines[8:]
    assert len(of_the_machine) == len(of_the_run)
    assert not {*of_the_run} & {*of_the_machine}
