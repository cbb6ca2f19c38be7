"""Places with secrets are closed to other accounts while a training runs, and open again after."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gate.errors import CancelledError, RunError, StorageError
from gate.isolation.accounts import SHARED_FOLDERS
from gate.isolation.restricted_paths import restrict_access, secret_paths
from gate.isolation.stop_signals import StopSignals

OTHER = 60900
CANARY = "CANARY-secret"


def seen_by_another(path: Path) -> bool:
    """Whether another account can read a file or list a folder."""
    command = ("ls" if path.is_dir() else "cat", str(path))
    done = subprocess.run(
        command, user=OTHER, group=OTHER, extra_groups=(), capture_output=True, check=False
    )
    return done.returncode == 0


def modes(top: Path) -> dict[str, int]:
    """The permissions of everything below a folder."""
    return {str(path): stat.S_IMODE(path.lstat().st_mode) for path in (top, *top.rglob("*"))}


@pytest.fixture
def runner(open_folder_for_all: Path) -> Path:
    """A runner's folders as a container sees them: a token in a file that everybody may read."""
    for name in (
        "runner_temp/git-credentials.config",
        "workspace/.git/config",
        "workspace/train.py",
        "workspace/out/evidence/strict-1.json",
        "workspace/out/work/run/tree/train.py",
        "workspace/out/work/head-snapshot/train.py",
    ):
        path = open_folder_for_all / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(CANARY)
    return open_folder_for_all


def _signal_twice(in_between: Callable[[], None]) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    in_between()
    os.kill(os.getpid(), signal.SIGTERM)


def _fail_if(closed: bool) -> None:  # noqa: FBT001 - one argument
    if closed:
        raise KeyError


def places(runner: Path) -> tuple[Path, ...]:
    return (runner / "runner_temp", runner / "workspace" / ".git", runner / "workspace" / "out")


@pytest.mark.usefixtures("root")
def test_a_canary_is_out_of_reach_and_the_way_to_the_run_is_not(runner: Path) -> None:
    before, out = modes(runner), runner / "workspace" / "out"
    secret = [runner / "runner_temp", runner / "runner_temp" / "git-credentials.config",
              runner / "workspace" / ".git" / "config", out, out / "evidence" / "strict-1.json",
              out / "work" / "head-snapshot" / "train.py"]  # fmt: skip
    with restrict_access(places(runner), out / "work" / "run", StopSignals()):
        assert not any(map(seen_by_another, secret))
        assert seen_by_another(out / "work" / "run" / "tree" / "train.py")
        assert seen_by_another(runner / "workspace" / "train.py")
        # written meanwhile, by the gate, and by nobody else
        (out / "evidence" / "strict-2.json").write_text(CANARY)
        assert not seen_by_another(out / "evidence" / "strict-2.json")
    (out / "evidence" / "strict-2.json").unlink()
    assert modes(runner) == before
    assert all(map(seen_by_another, secret))


@pytest.mark.usefixtures("root")
def test_a_group_that_the_training_has_is_closed_out_as_well(runner: Path) -> None:
    secret, way = runner / "runner_temp", runner / "workspace" / "out" / "work" / "run"
    other = runner / "workspace" / "out"
    for path in (secret, other):
        os.chown(path, 0, 60944)
        path.chmod(0o770)
    with restrict_access((secret, other), way, StopSignals(), (60944,)):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o700
        # what the way lies in stays passable
        assert stat.S_IMODE(other.stat().st_mode) == 0o710
    assert {stat.S_IMODE(path.stat().st_mode) for path in (secret, other)} == {0o770}
    with restrict_access((secret,), way, StopSignals()):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o770


def test_access_is_given_back_after_a_fault(runner: Path) -> None:
    before = modes(runner)
    with pytest.raises(KeyError), restrict_access(places(runner), runner / "x", StopSignals()):
        _fail_if(modes(runner) != before)
    assert modes(runner) == before


def test_access_is_given_back_by_both_signals(runner: Path) -> None:
    before = modes(runner)
    seen: list[bool] = []
    # the real one ends the process
    interrupts = StopSignals(leave=lambda _: seen.append(modes(runner) == before))
    with (
        interrupts.installed(),
        pytest.raises(CancelledError),
        restrict_access(places(runner), runner / "x", interrupts),
        interrupts.deferred(),
    ):
        _signal_twice(lambda: seen.append(modes(runner) == before))
    assert seen == [False, True]
    assert modes(runner) == before


def test_a_link_is_left_alone_and_so_is_what_it_leads_to(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("public")
    out = tmp_path / "out"
    (out / "run").mkdir(parents=True)
    (out / "link").symlink_to(victim)
    os.mkfifo(out / "pipe")
    before = modes(tmp_path)
    with restrict_access((out, tmp_path / "missing"), out / "run", StopSignals()):
        assert modes(tmp_path) == {**before, str(out): 0o751}
    assert modes(tmp_path) == before


def test_what_was_put_in_the_place_meanwhile_keeps_its_permissions(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("old")
    with restrict_access((secret,), tmp_path / "run", StopSignals()):
        (tmp_path / "new").write_text("new")
        (tmp_path / "new").chmod(0o600)
        (tmp_path / "new").replace(secret)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_access_that_cannot_be_given_back_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text(CANARY)
    with (
        pytest.raises(StorageError) as caught,
        restrict_access((tmp_path / "secret",), tmp_path / "run", StopSignals()),
    ):
        monkeypatch.setattr(os, "fchmod", lambda *_: tmp_path.rmdir())
    assert caught.value.message.endswith(
        "was closed to other accounts and its permissions cannot be restored"
    )


@pytest.mark.usefixtures("root")
def test_what_cannot_be_closed_is_an_error() -> None:
    with (
        pytest.raises(RunError) as caught,
        restrict_access((Path("/proc/sys/kernel/hostname"),), Path("/run"), StopSignals()),
    ):
        pass
    assert caught.value.message == (
        "cannot close /proc/sys/kernel/hostname to the training: Operation not permitted"
    )
    assert caught.value.hint.startswith("The gate must own it or hold CAP_FOWNER")


def test_on_a_runner_its_own_places_are_private(tmp_path: Path) -> None:
    (tmp_path / "gha-creds-0123.json").write_text(CANARY)
    (tmp_path / "gha-creds-link.json").symlink_to("/etc/passwd")
    variables = {
        "GITHUB_ACTIONS": "true",
        "GITHUB_EVENT_PATH": "/github/workflow/event.json",
        "GITHUB_OUTPUT": "/github/file_commands/set_output_1",
        "GITHUB_STATE": "",
        "HOME": "/github/home",
        "RUNNER_TEMP": "/github/runner_temp",
    }
    assert secret_paths(tmp_path, variables) == (
        tmp_path / ".git",
        tmp_path / "gha-creds-0123.json",
        Path("/github/runner_temp"),
        Path("/github/home"),
        Path("/github/file_commands"),
        Path("/github/workflow"),
    )
    beside_nothing = secret_paths(tmp_path / "clone", {**variables, "HOME": "/"})
    assert Path("/") not in beside_nothing
    assert secret_paths(tmp_path / "clone", {"HOME": "/root"}) == (tmp_path / "clone" / ".git",)


def test_a_folder_that_every_account_uses_stays_open_and_the_file_in_it_is_closed(
    tmp_path: Path,
) -> None:
    """A closed one would stop every other program of the machine, another gate's among them."""
    shared = SHARED_FOLDERS[0]
    variables = {
        "GITHUB_ACTIONS": "true",
        "RUNNER_TEMP": str(shared),
        "HOME": str(shared),
        "GITHUB_EVENT_PATH": str(shared / "event.json"),
        "GITHUB_OUTPUT": str(shared / "run" / "output"),
    }
    found = set(secret_paths(tmp_path / "clone", variables))
    assert found == {tmp_path / "clone" / ".git", shared / "event.json", shared / "run"}
