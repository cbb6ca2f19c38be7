"""An account for trainings is one gate's alone, for as long as that gate uses it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gate.errors import RunError, StorageError
from gate.isolation.account_choice import ACCOUNTS, unused_account
from gate.isolation.accounts import LOCKS, acquire_uid, release_uid

UID = 61050
# says which account it has once it may start, and has it until its input ends
HOLDER = """
import sys
from gate.isolation.account_choice import unused_account
sys.stdin.readline()
taken = unused_account(range(int(sys.argv[1]), int(sys.argv[2])))
print(taken.uid if taken else "none", flush=True)
sys.stdin.read()
"""
# a gate's way through its runs; each training looks whether what it wrote stays
GATE = """
import sys, tempfile
from pathlib import Path
from gate.isolation.engine import Engine
from gate.isolation.stop_signals import StopSignals
from gate.training.isolating import Isolating
from gate.isolation.process_request import ProcessRequest
from gate.isolation.modes import IsolationMode, IsolationSettings
from gate.settings.gate_settings import GateSettings, TrainSettings
isolating = Isolating(Engine(lambda _: None), StopSignals(), sys.argv[1])
settings = GateSettings(
    version=1,
    train=TrainSettings(command=("python3", "x.py"), max_steps=1),
    isolation=IsolationSettings(mode=IsolationMode.UID),
)
sys.stdin.readline()
isolation = isolating.choose(settings, (Path("/"),))
request = ProcessRequest(
    argv=(sys.argv[1], "-c", sys.argv[2]), env={}, workdir=Path("/"), timeout_seconds=120,
    output_limit_bytes=4096, credentials=isolation.credentials,
    # as a training has: who only reads has no temporary folders of its own
    writable=(Path(tempfile.mkdtemp()),),
)
for _ in range(3):
    result = isolating.processes.run(request, lambda _: None)
    isolating.clean_up(isolation)
    print(result.exit_code, result.output.decode().strip(), flush=True)
print(isolation.credentials.uid, flush=True)
sys.stdin.read()
"""
TRAINING = """
import os, pathlib, time
mine = [pathlib.Path(folder, f"of-{os.getuid()}-{os.urandom(4).hex()}")
        for folder in ("/tmp", "/dev/shm")]
for path in mine: path.touch()
for _ in range(40):
    time.sleep(0.01)
    assert all(path.exists() for path in mine), "swept"
print("undisturbed")
"""


def started(program: str, *arguments: str, within: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        (*within, sys.executable, "-c", program, *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def told(holder: subprocess.Popen[str]) -> str:
    assert holder.stdout is not None
    return holder.stdout.readline().strip()


def begin(*holders: subprocess.Popen[str]) -> None:
    for holder in holders:
        assert holder.stdin is not None
        holder.stdin.write("\n")
        holder.stdin.flush()


@pytest.fixture
def held() -> Iterator[ExitStack]:
    """Gives back what a test holds."""
    with ExitStack() as ends:
        ends.callback(release_uid, UID)
        yield ends


@pytest.mark.usefixtures("held")
def test_a_held_account_is_nobody_elses_until_it_is_given_back(tmp_path: Path) -> None:
    assert acquire_uid(UID, (tmp_path,))
    assert not acquire_uid(UID, (tmp_path,))
    release_uid(UID)
    assert acquire_uid(UID, (tmp_path,))


@pytest.mark.usefixtures("held")
def test_one_folder_in_common_is_enough(tmp_path: Path) -> None:
    own, other, shared = (tmp_path / name for name in ("own", "other", "shared"))
    for folder in (own, other, shared):
        folder.mkdir()
    assert acquire_uid(UID, (own, shared, tmp_path / "missing"))
    assert not acquire_uid(UID, (other, shared))
    # what it had locked on the way is free again
    release_uid(UID)
    assert acquire_uid(UID, (other, shared))


@pytest.mark.usefixtures("held")
def test_the_lock_goes_with_its_process_and_is_not_handed_to_children(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys; from pathlib import Path\n"
        "from gate.isolation.accounts import acquire_uid\n"
        f"assert acquire_uid({UID}, (Path(sys.argv[1]),))\n"
        "child = subprocess.Popen(('/bin/sleep', '60'))\n"
        "print(child.pid, flush=True); sys.stdin.read()\n"
    )
    with started(program, str(tmp_path)) as holder:
        child = int(told(holder))
        assert not acquire_uid(UID, (tmp_path,))
        holder.kill()
    os.kill(child, 0)
    assert acquire_uid(UID, (tmp_path,))
    os.kill(child, 9)


def test_a_folder_that_is_not_the_gates_is_no_place_for_a_lock(tmp_path: Path) -> None:
    (tmp_path / LOCKS).mkdir()
    (tmp_path / LOCKS).chmod(0o777)
    with pytest.raises(RunError, match=f"{LOCKS} is not private to the gate") as caught:
        acquire_uid(UID, (tmp_path,))
    assert "Remove it" in caught.value.hint


def test_a_link_in_the_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / LOCKS).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match=f"locking .*{LOCKS} failed: Not a directory"):
        acquire_uid(UID, (tmp_path,))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_without_a_place_there_is_no_lock(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot lock the training's account") as caught:
        acquire_uid(UID, (tmp_path / "missing",))
    assert caught.value.hint.startswith("Give the gate's machine or container a writable /tmp")


@pytest.mark.usefixtures("held")
def test_where_nobody_can_write_no_lock_is_needed(tmp_path: Path, small_disk: Path) -> None:
    mount = str(shutil.which("mount"))
    subprocess.run((mount, "-o", "remount,ro", str(small_disk)), check=True)
    assert acquire_uid(UID, (tmp_path, small_disk))
    assert list(small_disk.iterdir()) == []
    with pytest.raises(RunError, match="are missing or read-only"):
        acquire_uid(UID, (small_disk,))


@pytest.mark.usefixtures("root")
def test_what_starts_in_the_same_moment_never_has_the_same_account() -> None:
    with ExitStack() as ends:
        names = (str(ACCOUNTS[-3]), str(ACCOUNTS[-1]))
        holders = [ends.enter_context(started(HOLDER, *names)) for _ in range(4)]
        for holder in holders:
            ends.callback(holder.kill)
        begin(*holders)
        answers = [told(holder) for holder in holders]
        given = [uid for uid in answers if uid != "none"]
        assert len(given) == len(set(given))
        # another gate of this machine may have one of the two
        assert len(given) <= 2


@pytest.mark.usefixtures("root")
def test_an_account_in_use_is_not_taken() -> None:
    taken = unused_account()
    assert taken is not None
    only = range(taken.uid, taken.uid + 1)
    assert unused_account(only) is None
    with subprocess.Popen(("/bin/sleep", "30"), user=taken.uid, group=taken.gid) as sleeper:
        release_uid(taken.uid)
        assert unused_account(only) is None
        sleeper.kill()


# as two containers that share their folders, each with a gate of the same process id
APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


@pytest.mark.parametrize("within", [(), APART])
def test_two_gates_at_once_leave_each_other_alone(
    within: tuple[str, ...], system_python: str
) -> None:
    if within and subprocess.run((*within, "true"), check=False, capture_output=True).returncode:
        pytest.skip("needs unshare(1), and leave to make a table of processes")
    with ExitStack() as ends:
        gates = [
            ends.enter_context(started(GATE, system_python, TRAINING, within=within))
            for _ in range(2)
        ]
        for gate in gates:
            ends.callback(gate.kill)
        begin(*gates)
        answers = [[told(gate) for _ in range(4)] for gate in gates]
    assert [answer[:3] for answer in answers] == [["0 undisturbed"] * 3] * 2
    assert answers[0][3] != answers[1][3]
