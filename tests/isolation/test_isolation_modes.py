"""Isolation: found out by trying, never assumed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gate.errors import RunError
from gate.isolation import account_choice
from gate.isolation.account_choice import (
    ACCOUNTS,
    accounts_beside,
    choose_isolation,
    unused_account,
)
from gate.isolation.accounts import acquire_uid, release_uid
from gate.isolation.modes import (
    Credentials,
    Isolation,
    IsolationMode,
    IsolationSettings,
    Separation,
    WriteGuard,
)
from gate.isolation.process_request import ProcessRequest, ProcessResult
from gate.isolation.processes import LocalProcesses

Python = Callable[..., subprocess.CompletedProcess[bytes]]


class Answering:
    """A runner whose processes all end in one way."""

    def __init__(self, exit_code: int, output: bytes) -> None:
        self._exit_code = exit_code
        self._output = output
        self.accounts: list[Credentials] = []

    def run(self, request: ProcessRequest, on_line: Callable[[bytes], None]) -> ProcessResult:
        assert request.credentials is not None
        self.accounts.append(request.credentials)
        on_line(self._output)
        return ProcessResult(
            exit_code=self._exit_code,
            timed_out=False,
            wall_seconds=0.1,
            output=self._output,
            output_bytes=len(self._output),
        )


def choose(
    mode: IsolationMode,
    interpreter: str,
    *folders: Path,
    network: bool = False,
    groups: tuple[int, ...] = (),
) -> Isolation:
    asked = IsolationSettings(mode=mode, network=network)
    chosen = choose_isolation(asked, LocalProcesses(), interpreter, folders, groups)
    if chosen.credentials is not None:
        release_uid(chosen.credentials.uid)
    return chosen


def test_none_is_taken_at_its_word() -> None:
    chosen = choose(IsolationMode.NONE, sys.executable)
    assert chosen == Isolation(
        mode=IsolationMode.NONE, credentials=None, reason="isolation.mode is none"
    )


def test_an_account_that_can_do_all_is_taken(system_python: str, open_folder_for_all: Path) -> None:
    chosen = choose(IsolationMode.AUTO, system_python, open_folder_for_all)
    assert chosen.mode is IsolationMode.UID
    assert chosen.credentials is not None
    assert chosen.credentials.uid in ACCOUNTS
    guard = chosen.credentials.guard
    assert chosen.reason.startswith(
        "the training runs under a separate account without network access; "
        f"{account_choice.GUARDED[guard]}"
    )
    own = "; own processes, network, terminals, files" * bool(chosen.own)
    # not everywhere may the gate make a control group
    own += ", cache" * (Separation.CACHE in chosen.own)
    assert (chosen.network, chosen.described) == (False, f"uid ({guard.value}{own})")


def test_an_open_network_is_told(system_python: str) -> None:
    chosen = choose(IsolationMode.UID, system_python, network=True)
    assert "with network access (isolation.network); " in chosen.reason
    assert chosen.network
    assert chosen.described.startswith("uid (")
    assert chosen.described.endswith("), network open")


def test_groups_of_device_files_are_given_and_told(system_python: str) -> None:
    chosen = choose(IsolationMode.UID, system_python, groups=(60944, 60945))
    assert chosen.credentials is not None
    assert chosen.credentials.groups == chosen.device_groups == (60944, 60945)
    assert "it has the groups 60944, 60945, which own the GPUs' device files" in chosen.reason
    assert chosen.described.endswith(", device groups 60944 60945")


class Greedy(LocalProcesses):
    """A sandbox that hands out a group which nobody asked for."""

    def run(self, request: ProcessRequest, on_line: Callable[[bytes], None]) -> ProcessResult:
        assert request.credentials is not None
        more = replace(request.credentials, groups=(*request.credentials.groups, 60946))
        return super().run(replace(request, credentials=more), on_line)


@pytest.mark.usefixtures("system_python")
@pytest.mark.parametrize("groups", [(), (60944,)])
def test_a_group_beyond_those_is_an_obstacle(groups: tuple[int, ...]) -> None:
    tried = choose_isolation(IsolationSettings(), Greedy(), "/usr/bin/python3", (), groups)
    assert tried.mode is IsolationMode.NONE
    assert "60946" in tried.reason


def test_a_closed_folder_is_an_obstacle(system_python: str, open_folder_for_all: Path) -> None:
    closed = open_folder_for_all / "closed"
    closed.mkdir(mode=0o700)
    chosen = choose(IsolationMode.AUTO, system_python, closed)
    assert (chosen.mode, chosen.credentials) == (IsolationMode.NONE, None)
    assert chosen.reason == f"{closed} is closed to other accounts (mode 0700)"


@pytest.mark.usefixtures("root")
def test_an_interpreter_out_of_reach_is_an_obstacle(open_folder_for_all: Path) -> None:
    closed = open_folder_for_all / "python"
    closed.symlink_to(sys.executable)
    open_folder_for_all.chmod(0o700)
    assert choose(IsolationMode.AUTO, str(closed)).reason == (
        f"cannot start {closed}: {open_folder_for_all} is closed to other accounts (mode 0700)"
    )


@pytest.mark.usefixtures("root")
def test_asking_for_what_cannot_be_had_is_an_error() -> None:
    with pytest.raises(RunError) as caught:
        choose(IsolationMode.UID, "/no/such/python")
    assert caught.value.message == (
        "isolation.mode is uid, but cannot start /no/such/python: command not found"
    )
    assert caught.value.hint.startswith("Run the gate as root with an interpreter")


def test_a_machine_below_the_minimum_is_an_error() -> None:
    asked = IsolationSettings(mode=IsolationMode.AUTO, minimum=IsolationMode.UID)
    with pytest.raises(RunError) as caught:
        choose_isolation(asked, LocalProcesses(), "/no/such/python", ())
    assert caught.value.message.startswith("isolation.minimum is uid, but ")
    assert caught.value.hint.startswith("Run the gate as root with an interpreter")


@pytest.mark.parametrize(
    ("mode", "minimum", "fault"),
    [
        ("none", "uid", "mode: none is weaker than minimum: uid"),
        ("uid", "auto", "minimum: auto is not a minimum; name a mode"),
    ],
)
def test_settings_that_contradict_themselves_are_refused(
    mode: str, minimum: str, fault: str
) -> None:
    with pytest.raises(ValueError, match=fault):
        IsolationSettings.model_validate_json(f'{{"mode": "{mode}", "minimum": "{minimum}"}}')


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("runner", "reason"),
    [
        (Answering(0, b"ids are [0, 9]\n"), "another account cannot use p: ids are [0, 9]"),
        (Answering(1, b""), "another account cannot use p: no answer"),
        (Answering(1, b"isolated\n"), "another account cannot use p: isolated"),
    ],
)
def test_only_a_full_answer_counts(runner: Answering, reason: str) -> None:
    assert choose_isolation(IsolationSettings(), runner, "p", ()).reason == reason


def test_an_ordinary_account_cannot_isolate(python: Python) -> None:
    program = (
        "import os\n"
        "from gate.isolation.account_choice import choose_isolation\n"
        "from gate.settings.gate_settings import IsolationSettings\n"
        "if os.geteuid() == 0: os.setuid(60900)\n"
        "print(choose_isolation(IsolationSettings(), None, 'python', ()).reason)\n"
    )
    assert python("-c", program).stdout == b"the gate does not run as root\n"


class Refusing(LocalProcesses):
    """A machine that has some of the guards only."""

    def __init__(self, *missing: WriteGuard) -> None:
        super().__init__()
        self._missing = missing

    def run(self, request: ProcessRequest, on_line: Callable[[bytes], None]) -> ProcessResult:
        if request.credentials is not None and request.credentials.guard in self._missing:
            raise RunError("the training cannot be sandboxed: Operation not permitted")
        return super().run(request, on_line)


class Sharing(LocalProcesses):
    """A machine with neither overlays over what an account can reach, nor control groups."""

    def run(self, request: ProcessRequest, on_line: Callable[[bytes], None]) -> ProcessResult:
        lacks = {Separation.FILES, Separation.CACHE}
        if request.credentials is not None and lacks & {*request.credentials.own}:
            raise RunError("the training cannot be sandboxed: show own view: Invalid argument")
        return super().run(request, on_line)


@pytest.mark.usefixtures("system_python")
def test_where_files_are_shared_runs_go_one_after_the_other_and_it_is_told() -> None:
    chosen = choose_isolation(IsolationSettings(), Sharing(), "/usr/bin/python3", ())
    assert chosen.credentials is not None
    release_uid(chosen.credentials.uid)
    assert chosen.described == "uid (mount namespace; own processes, network, terminals)"
    assert chosen.reason.endswith(
        "each run has its own processes, network and terminals; runs share what is not named here "
        "(the training cannot be sandboxed: show own view: Invalid argument)"
    )
    assert chosen.of_a_run.own == chosen.own == chosen.credentials.own
    with pytest.raises(RunError, match=r"two runs would share files \(the training can") as no:
        accounts_beside(chosen, LocalProcesses(), "/usr/bin/python3", 1)
    assert no.value.hint == "The runs go one after the other, with the same result."


def weakened(*missing: WriteGuard) -> Isolation:
    chosen = choose_isolation(IsolationSettings(), Refusing(*missing), "/usr/bin/python3", ())
    assert chosen.credentials is not None
    release_uid(chosen.credentials.uid)
    return chosen


@pytest.mark.usefixtures("system_python")
def test_without_a_mount_namespace_landlock_is_taken() -> None:
    chosen = weakened(WriteGuard.MOUNT_NAMESPACE)
    assert chosen.described == "uid (landlock)"
    assert "Landlock keeps it from writing outside its folders" in chosen.reason


@pytest.mark.usefixtures("system_python")
def test_landlock_closes_a_temporary_folder_in_which_others_left_a_way() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "open").mkdir()
        (Path(folder) / "open").chmod(0o777)
        chosen = weakened(WriteGuard.MOUNT_NAMESPACE)
    assert chosen.credentials is not None
    assert Path("/var/tmp") not in chosen.credentials.shared  # noqa: S108 - looked for
    assert "is closed to it, because other accounts can write in parts of it" in chosen.reason


@pytest.mark.usefixtures("system_python")
def test_without_either_the_places_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/var/lib") as folder:
        Path(folder).chmod(0o777)
        monkeypatch.setattr(
            account_choice, "EVERYWHERE", (Path("/var/lib"),)
        )  # else the whole machine
        chosen = weakened(WriteGuard.MOUNT_NAMESPACE, WriteGuard.LANDLOCK)
    assert chosen.described == "uid (permissions only)"
    assert Path(folder) in chosen.writable_paths


@pytest.mark.usefixtures("root")
def test_an_account_that_does_not_do_is_given_back() -> None:
    tried = Answering(1, b"")
    choose_isolation(IsolationSettings(), tried, "p", ())
    assert [account.guard for account in tried.accounts] == [
        # with and without all that a run can have of its own
        WriteGuard.MOUNT_NAMESPACE,
        *WriteGuard,
    ]
    (uid,) = {account.uid for account in tried.accounts}
    assert acquire_uid(uid)
    release_uid(uid)


def test_an_account_with_a_name_is_not_taken() -> None:
    assert unused_account(range(os.getuid(), os.getuid() + 1)) is None


@pytest.mark.parametrize(
    ("own_uid", "reason"),
    [
        (0, "every account from 61001 to 61183 is in use"),
        (1000, "the gate does not run as root"),
    ],
)
def test_without_an_account_the_reason_is_told(own_uid: int, reason: str) -> None:
    assert account_choice._why_no_account(own_uid) == reason
