"""The folder that keeps an account from a program is named, wherever links lead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gate.errors import RunError
from gate.isolation.modes import Credentials, Isolation, IsolationMode
from gate.isolation.process_request import ProcessRequest
from gate.isolation.processes import LocalProcesses
from gate.isolation.sandboxed_start import first_blocked_folder

STRANGER = Credentials(uid=60900, gid=60900)


@pytest.fixture
def top(open_folder_for_all: Path) -> Path:
    """An open folder with a closed one, in which an interpreter lies."""
    home = open_folder_for_all / "home"
    (home / "python/bin").mkdir(parents=True)
    (home / "python/bin/python").touch(0o755)
    home.chmod(0o700)
    return open_folder_for_all


def asked(account: Credentials, command: str, path: str) -> ProcessRequest:
    """A command by its name, looked for on a PATH."""
    return ProcessRequest(
        argv=(command,),
        env={"PATH": path},
        workdir=Path("/"),
        timeout_seconds=120,
        output_limit_bytes=4096,
        credentials=account,
    )


@pytest.mark.parametrize("target", ["home/python/bin/python", "./x/../home/python/bin/python"])
def test_the_closed_folder_behind_a_link_is_named(top: Path, target: str) -> None:
    (top / "x").mkdir()
    (top / "environment").symlink_to(target)
    assert first_blocked_folder(top / "environment", STRANGER) == top / "home"
    (top / "second").symlink_to(top / "environment")
    assert first_blocked_folder(top / "second", STRANGER) == top / "home"


def test_a_way_that_is_open_or_ends_names_nothing(top: Path) -> None:
    (top / "file").touch()
    (top / "circle").symlink_to("circle")
    for name in ("file", "file/below", "missing/below", "circle"):
        assert first_blocked_folder(top / name, STRANGER) is None


def test_its_owner_and_its_group_may_enter_by_their_own_permissions(top: Path) -> None:
    facts = (top / "home").stat()
    owner = Credentials(uid=facts.st_uid, gid=60900)
    assert first_blocked_folder(top / "home/python", owner) is None
    (top / "home").chmod(0o710)
    assert (
        first_blocked_folder(top / "home/python", Credentials(uid=60900, gid=facts.st_gid)) is None
    )


def test_a_link_of_an_environment_into_a_closed_home_is_explained(
    top: Path, account: Credentials
) -> None:
    (top / "python").symlink_to("home/python/bin/python")
    request = asked(account, "python", str(top))
    with pytest.raises(RunError) as caught:
        LocalProcesses().run(request, lambda _: None)
    assert caught.value.message == (
        f"cannot start python: {top}/home is closed to other accounts (mode 0700)"
    )
    assert f"chmod o+x {top}/home" in caught.value.hint


def test_a_command_that_is_nowhere_is_not_found_although_a_folder_of_path_is_closed(
    top: Path, account: Credentials
) -> None:
    request = asked(account, "torchrun", f"{top}/home/python/bin:/usr/bin")
    with pytest.raises(RunError) as caught:
        LocalProcesses().run(request, lambda _: None)
    assert caught.value.message == "cannot start torchrun: command not found"
    assert caught.value.hint.startswith("Install it in the training's environment")
    (top / "torchrun").touch(0o644)
    there = replace(request, env={"PATH": f"{top}/home/python/bin:{top}"})
    with pytest.raises(RunError, match="cannot start torchrun: permission denied"):
        LocalProcesses().run(there, lambda _: None)


def test_the_callers_own_account_does_not_sound_like_a_fault() -> None:
    reason = "cannot start python: /root is closed to other accounts (mode 0700)"
    alone = Isolation(mode=IsolationMode.NONE, credentials=None, reason=reason)
    assert alone.announced == (
        "isolation: none. The training runs under your own account, which is fine for your own "
        "code (cannot start python: /root is closed to other accounts (mode 0700))."
    )
