"""Fixtures for several folders of tests: files, accounts, a folder that all accounts may enter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gate.isolation.account_choice import unused_account
from gate.isolation.accounts import release_uid
from gate.isolation.modes import Credentials
from gate.system.files.files import LocalFiles

SYSTEM_PYTHON = "/usr/bin/python3"


@pytest.fixture
def files() -> LocalFiles:
    return LocalFiles()


@pytest.fixture
def python() -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Run a small program that uses the gate, in a separate process."""

    def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = (sys.executable, *arguments)
        return subprocess.run(command, capture_output=True, check=False, timeout=120)

    return run


@pytest.fixture
def lines() -> list[bytes]:
    return []


@pytest.fixture
def open_folder_for_all() -> Iterator[Path]:
    """Yield a folder that other accounts can enter, unlike pytest's own folders."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        path.chmod(0o755)
        yield path


@pytest.fixture
def system_python() -> str:
    """Return an interpreter that every account may start; the tests' own is often in a home."""
    if os.geteuid() != 0 or not Path(SYSTEM_PYTHON).exists():
        pytest.skip(f"needs root, and {SYSTEM_PYTHON} for another account")
    return SYSTEM_PYTHON


@pytest.fixture
def root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can change to another account")


@pytest.fixture
def account(root: None) -> Iterator[Credentials]:  # noqa: ARG001 - skips where it cannot be had
    """An account that no gate, no training and no other test has meanwhile; its group is another.

    A test that only needs somebody else takes 60900: of those nobody ends processes.
    """
    taken = unused_account()
    assert taken is not None
    yield Credentials(uid=taken.uid, gid=60900)
    release_uid(taken.uid)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    command = (str(mount), "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk))
    if mount is None or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("this machine does not let a test mount a small disk")
    yield disk
    subprocess.run((str(shutil.which("umount")), "-l", str(disk)), check=True)
