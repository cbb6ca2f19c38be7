"""What an account leaves outside its run is gone before the next run, and nothing else is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gate.errors import RunError
from gate.isolation import accounts
from gate.isolation.accounts import remove_residue
from gate.isolation.modes import Credentials


def as_the(account: Credentials, command: str, folder: Path) -> str:
    done = subprocess.run(
        ("/bin/sh", "-c", command),
        cwd=folder,
        user=account.uid,
        group=account.gid,
        extra_groups=(),
        capture_output=True,
        check=True,
        text=True,
    )
    return done.stdout


@pytest.fixture
def shared(open_folder_for_all: Path) -> Path:
    """A folder like /tmp, with another one like that in it, and files of root's."""
    for name in ("", ".X11-unix"):
        (open_folder_for_all / name).mkdir(exist_ok=True)
        (open_folder_for_all / name).chmod(0o1777)
    (open_folder_for_all / "roots").mkdir()
    (open_folder_for_all / "roots" / "file").write_text("kept")
    return open_folder_for_all


def test_files_folders_and_links_of_the_account_are_removed(
    shared: Path, account: Credentials
) -> None:
    as_the(
        account,
        "mkdir -p deep/er; echo x >deep/er/file; chmod 0 deep; ln -s $PWD/roots link; "
        "mkfifo pipe; touch .X11-unix/hidden; ln -s / .X11-unix/root",
        shared,
    )
    remove_residue(account, (shared, Path("/no/such/folder")))
    left = sorted(str(path.relative_to(shared)) for path in shared.rglob("*"))
    assert left == [".X11-unix", "roots", "roots/file"]


def test_a_folder_of_a_third_account_is_not_entered(shared: Path, account: Credentials) -> None:
    """Its owner could put a link in its place between the look and the removal."""
    (shared / "third").mkdir()
    (shared / "third").chmod(0o777)
    as_the(account, "touch third/file", shared)
    os.chown(shared / "third", 60900, 60900)
    remove_residue(account, (shared,))
    assert (shared / "third" / "file").exists()


def test_system_v_objects_are_removed(shared: Path, account: Credentials) -> None:
    if not Path(accounts.IPCRM).exists():
        pytest.skip("ipcmk and ipcrm are not installed")
    as_the(account, "ipcmk -M 64 && ipcmk -S 1 && ipcmk -Q", shared)
    assert {kind for kind, _ in accounts._system_v_of(account.uid)} == {"shm", "sem", "msg"}
    remove_residue(account, ())
    assert list(accounts._system_v_of(account.uid)) == []


def test_objects_that_stay_are_an_error(
    shared: Path, account: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Path(accounts.IPCRM).exists():
        pytest.skip("ipcmk and ipcrm are not installed")
    as_the(account, "ipcmk -Q", shared)
    with monkeypatch.context() as patched:
        patched.setattr(accounts, "IPCRM", "/no/such/ipcrm")
        with pytest.raises(RunError, match=r"System V objects that cannot be removed") as caught:
            remove_residue(account, ())
    assert "Install ipcrm" in caught.value.hint
    remove_residue(account, ())


def test_nothing_of_root_or_of_the_gate_is_ever_wiped(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="is not allowed for a training"):
        remove_residue(Credentials(uid=os.getuid(), gid=61095), (tmp_path,))
    assert (tmp_path / "file").exists()
