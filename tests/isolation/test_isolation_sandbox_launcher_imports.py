"""Once the account is changed nothing is imported: it may not be able to read the interpreter."""

from __future__ import annotations

import base64
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gate.isolation.modes import Credentials, WriteGuard
from gate.isolation.sandbox_launcher import LaunchPlan
from gate.isolation.sandboxed_start import OPTIONS, PACKAGE_ROOT
from gate.isolation.seccomp_filter import seccomp_filter

WATCHED = """
import os, sys
sys.path.append(sys.argv[1])
from gate.isolation import sandbox_launcher
def watch(event, words):
    if event == "import": os.write(1, b"imports " + words[0].encode() + b"\\n")
def arm(plan): sys.addaudithook(watch)
sandbox_launcher.STEPS = tuple(
    one
    for step in sandbox_launcher.STEPS
    for one in ((step, arm) if step is sandbox_launcher.change_account else (step,))
)
sandbox_launcher.main(int(sys.argv[2]))
"""


def started(account: Credentials, guard: WriteGuard, *argv: str) -> tuple[bytes, bytes]:
    """What the sandbox launcher and the training print, and what the sandbox launcher reports."""
    plan: LaunchPlan = {
        "argv": list(argv),
        "env": {"PATH": "/nonexistent:/usr/bin:/bin"},
        "workdir": "/",
        "uid": account.uid,
        "groups": [],
        "gid": account.gid,
        "limits": {},
        "seccomp_filter": base64.b64encode(
            seccomp_filter(platform.machine(), network=False)
        ).decode(),
        "guard": guard.value,
        "writable": [],
        "shared": [],
        "mounts": [],
        "place": None,
        "own": [],
        "cpus": [],
        "door": "",
    }
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as handed_over, os.fdopen(reading, "rb") as report:
        handed_over.write(json.dumps(plan).encode())
        handed_over.seek(0)
        done = subprocess.run(
            (sys.executable, *OPTIONS, "-c", WATCHED, str(PACKAGE_ROOT), str(writing)),
            env={},
            stdin=handed_over,
            stdout=subprocess.PIPE,
            pass_fds=(writing,),
            check=False,
            timeout=120,
        )
        os.close(writing)
        return done.stdout, report.read()


@pytest.mark.parametrize("guard", WriteGuard)
def test_nothing_is_imported_on_the_way_to_the_training(
    account: Credentials, guard: WriteGuard
) -> None:
    printed, report = started(account, guard, "sh", "-c", "echo it runs")
    if b"show_own_view" in report or b"refuse_writing" in report:
        pytest.skip(f"this machine has no {guard.value}")
    assert (printed, report) == (b"it runs\n", b".")


def test_nothing_is_imported_to_say_that_a_command_is_missing(account: Credentials) -> None:
    printed, report = started(account, WriteGuard.NONE, "no-such-command")
    assert printed == b""
    assert json.loads(report.removeprefix(b".")) == {
        "step": "exec_command",
        "errno": 2,
        "reason": "No such file or directory",
    }


def test_a_command_that_may_not_be_executed_says_more_than_one_that_is_missing(
    account: Credentials, open_folder_for_all: Path
) -> None:
    script = open_folder_for_all / "script"
    script.write_text("echo")
    _, report = started(account, WriteGuard.NONE, str(script))
    assert json.loads(report.removeprefix(b"."))["reason"] == "Permission denied"
