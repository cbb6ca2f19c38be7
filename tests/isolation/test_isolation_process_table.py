"""The table of processes: relatives found, accounts guarded, the ended taken leave of."""

from __future__ import annotations

import os
import sys
import time

import pytest

from gate.errors import RunError
from gate.isolation.modes import Credentials
from gate.isolation.process_table import (
    descendants,
    end_all,
    kill,
    kill_account,
    process_control,
    processes,
    reap,
    require_other_account,
)

PYTHON = sys.executable


def test_what_outlives_everything_is_told() -> None:
    found = end_all(lambda: frozenset({4711}), lambda _: None, seconds=0.1)
    assert found == {4711}


@pytest.mark.parametrize("uid", [0, -1, 2**32 - 1, os.getuid()])
def test_an_account_that_must_not_be_ended_is_refused(uid: int) -> None:
    for account in (Credentials(uid=uid, gid=61091), Credentials(uid=61090, gid=uid)):
        with pytest.raises(RunError, match="is not allowed for a training"):
            require_other_account(account)


def test_a_process_that_is_gone_cannot_be_killed_twice() -> None:
    kill([2**22 + 1])


def test_adopted_children_are_taken_leave_of() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    reap(but=frozenset({pid}))
    assert any(row.pid == pid for row in processes())
    reap(but=frozenset())
    assert not any(row.pid == pid for row in processes())


def test_a_missing_switch_is_told() -> None:
    assert process_control(-1) == -1


def test_relatives_are_found_over_generations() -> None:
    program = "import os, signal; os.fork() or os.fork(); signal.pause()"
    pid = os.posix_spawn(PYTHON, [PYTHON, "-c", program], dict(os.environ))
    deadline = time.monotonic() + 60
    while len(descendants(pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    family = descendants(pid) | {pid}
    kill(family)
    os.waitpid(pid, 0)
    assert len(family) == 3


def test_without_a_shell_nothing_was_sent() -> None:
    assert not kill_account(Credentials(uid=61090, gid=61091), sender="/no/such/shell")
