"""Where a run can write, for real: by a mount namespace, by Landlock, and what is named without."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gate.errors import RunError
from gate.isolation import restricted_paths
from gate.isolation.modes import Credentials, WriteGuard
from gate.isolation.process_request import ProcessRequest, ReadOnlyMount
from gate.isolation.processes import LocalProcesses
from gate.isolation.restricted_paths import find_writable_paths

THIRD = 60901
GUARDS = [WriteGuard.MOUNT_NAMESPACE, WriteGuard.LANDLOCK]
WRITE = """
import os, sys, pathlib
def tried(action, *words):
    try: action(*words)
    except OSError as error: return type(error).__name__
for name in sys.argv[1:]:
    path = pathlib.Path(name)
    if path.is_dir():
        tried((path / "word").write_text, "word")
        tried(os.mkdir, path / "folder")
        tried(os.mkfifo, path / "pipe")
        tried(os.symlink, "word", path / "link")
    else:
        tried(path.write_text, "word")
        tried(os.truncate, path, 0)
"""


@dataclass(frozen=True)
class Places:
    """One of each kind that others can write, by the names of the security review."""

    by_name: dict[str, Path]

    def state(self) -> dict[str, object]:
        """All that a run could have left there."""
        return {
            name: sorted(map(str, path.iterdir())) if path.is_dir() else path.read_text()
            for name, path in self.by_name.items()
        }


@pytest.fixture
def places(root: None) -> Iterator[Places]:  # noqa: ARG001 - skips where they cannot be had
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as temporary,
        tempfile.TemporaryDirectory(dir="/var/tmp") as other,
        tempfile.TemporaryDirectory(dir="/var/lib") as elsewhere,
    ):
        tops = Path(temporary), Path(other), Path(elsewhere)
        for top in tops:
            top.chmod(0o755)
        made = {
            "third-account-folder": _folder(tops[0] / "third", 0o777, THIRD),
            "open-below-closed": _folder(tops[0] / "sticky", 0o1777),
            "open-elsewhere": _folder(tops[2] / "crash", 0o1777),
            "open-file": _file(tops[2] / "file"),
            "hard-link": _file(tops[1] / "file"),
        }
        os.link(made["hard-link"], tops[1] / "second")
        yield Places(made | {"second-link": tops[1] / "second"})


def _folder(path: Path, mode: int, owner: int = 0) -> Path:
    path.mkdir()
    path.chmod(mode)
    os.chown(path, owner, owner)
    return path


def _file(path: Path) -> Path:
    path.write_text("as it was")
    path.chmod(0o666)
    return path


@pytest.fixture
def own(open_folder_for_all: Path, account: Credentials) -> Path:
    """A folder of the run's own."""
    return _folder(open_folder_for_all / "own", 0o700, account.uid)


Guarded = Callable[..., bytes]


@pytest.fixture
def guarded(system_python: str, account: Credentials, own: Path) -> Guarded:
    """Run a Python program behind a guard; what it prints."""

    def run(
        guard: WriteGuard, program: str, *arguments: object, shared: tuple[Path, ...] = ()
    ) -> bytes:
        request = ProcessRequest(
            argv=(system_python, "-c", program, *map(str, arguments)),
            env={"PATH": os.defpath, "TMPDIR": str(own)},
            workdir=own,
            timeout_seconds=60,
            output_limit_bytes=65536,
            credentials=replace(account, guard=guard, shared=shared),
            writable=(own,),
        )
        try:
            return LocalProcesses().run(request, lambda _: None).output
        except RunError as error:
            if "cannot be sandboxed" not in error.message:
                raise
            pytest.skip(f"this machine has no {guard.value}: {error.message}")

    return run


@pytest.mark.parametrize("guard", GUARDS)
def test_no_run_writes_where_every_account_can(
    guard: WriteGuard, guarded: Guarded, places: Places
) -> None:
    before = places.state()
    guarded(guard, WRITE, *places.by_name.values())
    assert places.state() == before


def test_without_a_guard_the_same_program_writes_everywhere(
    guarded: Guarded, places: Places
) -> None:
    before = places.state()
    guarded(WriteGuard.NONE, WRITE, *places.by_name.values())
    assert not {name for name, was in before.items() if places.state()[name] == was}


@pytest.mark.parametrize("guard", GUARDS)
def test_a_run_does_in_its_own_folder_what_it_likes(guard: WriteGuard, guarded: Guarded) -> None:
    program = (
        "import os, socket, tempfile\n"
        "os.mkdir('a'); open('a/file', 'w').close(); os.truncate('a/file', 5); os.mkfifo('pipe')\n"
        "os.symlink('a', 'link'); os.link('a/file', 'a/second'); os.remove('a/second')\n"
        "socket.socket(socket.AF_UNIX).bind('socket')\n"
        "with tempfile.NamedTemporaryFile() as file: print(os.path.dirname(file.name))\n"
        "open('/dev/null', 'w').write('x'); print(open('/proc/self/comm', 'w').write('x'))\n"
    )
    lines = guarded(guard, program).splitlines()
    assert lines[0].endswith(b"/own")
    assert lines[1:] == [b"1"]


@pytest.mark.parametrize("guard", GUARDS)
def test_processes_of_a_run_share_memory(guard: WriteGuard, guarded: Guarded) -> None:
    program = (
        "import multiprocessing, multiprocessing.shared_memory as memory\n"
        "one = memory.SharedMemory(create=True, size=4096)\n"
        "one.buf[0] = 7; multiprocessing.Lock()\n"
        "two = memory.SharedMemory(one.name); print(two.buf[0]); two.close(); one.unlink()\n"
    )
    assert guarded(guard, program) == b"7\n"


def test_temporary_folders_are_private_to_a_run_in_its_own_view(guarded: Guarded) -> None:
    program = (
        "import os, pathlib\n"
        "for top in ('/tmp', '/var/tmp', '/dev/shm'):\n"
        "    path = pathlib.Path(top) / 'word-of-a-run'\n"
        "    print(path.exists()); path.write_text('word')\n"
    )
    for _ in range(2):
        assert guarded(WriteGuard.MOUNT_NAMESPACE, program) == b"False\n" * 3
    assert not Path("/tmp/word-of-a-run").exists()  # noqa: S108 - looked for


def test_reading_moves_no_time_of_access_in_a_view(guarded: Guarded, places: Places) -> None:
    path = places.by_name["open-file"]
    os.utime(path, (1000, 2000))
    read = "import sys; print(open(sys.argv[1]).read())"
    assert guarded(WriteGuard.MOUNT_NAMESPACE, read, path) == b"as it was\n"
    assert path.stat().st_atime == 1000


def test_times_and_permissions_stay_as_they_are_in_a_view(guarded: Guarded, places: Places) -> None:
    path = places.by_name["open-file"]
    os.utime(path, (1000, 2000))
    touch = "import os, sys\ntry: os.utime(sys.argv[1])\nexcept OSError as e: print(e.strerror)"
    assert guarded(WriteGuard.MOUNT_NAMESPACE, touch, path) == b"Read-only file system\n"
    assert path.stat().st_mtime == 2000


def test_system_v_objects_end_with_the_view(guarded: Guarded) -> None:
    program = (
        "import ctypes; libc = ctypes.CDLL(None)\n"
        "print(libc.shmget(0x6a7e, 64, 0o600)); libc.shmget(0x6a7e, 64, 0o1600)\n"
    )
    assert guarded(WriteGuard.MOUNT_NAMESPACE, program) == b"-1\n"
    assert guarded(WriteGuard.MOUNT_NAMESPACE, program) == b"-1\n"


def test_landlock_leaves_a_temporary_folder_open_where_it_is_told_to(
    guarded: Guarded, account: Credentials
) -> None:
    with tempfile.TemporaryDirectory() as shared:
        Path(shared).chmod(0o1777)
        write = "import sys, os; os.makedirs(sys.argv[1] + '/a/b'); print('made')"
        assert guarded(WriteGuard.LANDLOCK, write, shared, shared=(Path(shared),)) == b"made\n"
        assert (Path(shared) / "a/b").stat().st_uid == account.uid


@pytest.mark.usefixtures("root")
def test_what_others_can_write_is_found(places: Places) -> None:
    found = find_writable_paths(sorted({path.parent for path in places.by_name.values()}))
    assert found.complete
    assert set(places.by_name.values()) == set(found.paths)


def test_what_is_emptied_after_a_run_or_closed_is_not_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    closed = _folder(tmp_path / "closed", 0o700, os.getuid())
    (closed / "file").touch(0o666)
    (closed / "file").chmod(0o666)
    (tmp_path / "link").symlink_to("/dev/shm")  # noqa: S108 - not followed
    assert find_writable_paths((tmp_path,)).paths == ()
    assert find_writable_paths((tmp_path / "missing",)).paths == ()


@pytest.mark.usefixtures("root")
def test_what_a_group_of_the_account_can_write_is_found_too(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    inner = _folder(tmp_path / "inner", 0o750, os.getuid())
    for path, mode in ((tmp_path / "a", 0o660), (tmp_path / "b", 0o640), (inner / "c", 0o660)):
        path.touch()
        path.chmod(mode)
    for path in (inner, *tmp_path.glob("?"), inner / "c"):
        os.chown(path, 0, 60944)
    assert find_writable_paths((tmp_path,)).paths == ()
    assert find_writable_paths((tmp_path,), (60944,)).paths == (tmp_path / "a", inner / "c")


def test_the_look_around_is_bounded(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).touch()
    found = find_writable_paths((tmp_path,), max_entries=10)
    assert not found.complete
    assert found.below(tmp_path)
    assert restricted_paths.MAX_ENTRIES >= 10_000


def test_a_mount_shows_what_the_account_could_not_reach_and_only_that(
    own: Path, account: Credentials, tmp_path: Path
) -> None:
    """A file and a folder of closed folders, at paths inside of the run's own folder."""
    closed = tmp_path / "closed"
    (closed / "mini").mkdir(parents=True)
    (closed / "mini" / "x").write_text("shown")
    (closed / "secret").write_text("hidden")
    closed.chmod(0o700)
    (own / "mini").mkdir()
    (own / "one").touch()
    program = (
        "import pathlib, sys\n"
        "mini, one, secret = map(pathlib.Path, sys.argv[1:])\n"
        "print((mini / 'x').read_text(), one.read_text())\n"
        "for path in (secret, mini / '..' / '..' / 'secret'):\n"
        "    try: print(path.read_text())\n"
        "    except OSError as error: print(type(error).__name__)\n"
        "try: (mini / 'new').touch()\n"
        "except OSError as error: print(error.strerror)\n"
    )
    request = ProcessRequest(
        argv=("/usr/bin/python3", "-c", program, str(own / "mini"), str(own / "one"),
              str(closed / "secret")),
        env={},
        workdir=Path("/"),
        timeout_seconds=120,
        output_limit_bytes=4096,
        credentials=replace(account, guard=WriteGuard.MOUNT_NAMESPACE),
        writable=(own,),
        mounts=(
            ReadOnlyMount(source=closed / "mini", target=own / "mini"),
            ReadOnlyMount(source=closed / "mini" / "x", target=own / "one"),
        ),
    )  # fmt: skip
    try:
        result = LocalProcesses().run(request, lambda _: None)
    except RunError as error:
        pytest.skip(f"no mount namespace here: {error.message}")
    assert result.output.decode().splitlines() == [
        "shown shown",
        "PermissionError",
        "FileNotFoundError",
        "Read-only file system",
    ]
    assert (closed / "mini" / "x").read_text() == "shown"
