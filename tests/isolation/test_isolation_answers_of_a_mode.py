"""What an isolation answers, so that nobody asks what it is made of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gate.isolation.modes import (
    ContainerSettings,
    Credentials,
    Isolation,
    IsolationMode,
    TrainingContainer,
)

GATE = Path(__file__).parents[2] / "gate"
ACCOUNT = Credentials(uid=61000, gid=61000)
BESIDE = TrainingContainer(image_id="sha256:1", run="mark", limits=ContainerSettings())
NONE = Isolation(mode=IsolationMode.NONE, credentials=None, reason="")
UID = Isolation(mode=IsolationMode.UID, credentials=ACCOUNT, reason="")
CONTAINER = Isolation(
    mode=IsolationMode.CONTAINER, credentials=ACCOUNT, reason="", container=BESIDE
)


@pytest.mark.parametrize(
    ("isolation", "accounts", "restricted", "marks"),
    [(NONE, (), False, ()), (UID, (ACCOUNT,), True, ()), (CONTAINER, (ACCOUNT,), False, ("mark",))],
)
def test_each_mode_says_what_it_needs(
    isolation: Isolation,
    accounts: tuple[Credentials, ...],
    restricted: bool,  # noqa: FBT001 - a column of the table
    marks: tuple[str, ...],
) -> None:
    assert isolation.own_accounts == accounts
    assert isolation.needs_restricted_paths is restricted
    assert isolation.marked_containers == marks


def test_a_container_gets_only_the_variables_that_are_passed_by_name() -> None:
    host = {"PATH": "/bin", "TOKEN": "1"}
    assert UID.host_variables(host, ("TOKEN",)) == host
    assert CONTAINER.host_variables(host, ("TOKEN", "MISSING")) == {"TOKEN": "1"}


def test_nobody_asks_what_an_isolation_is_made_of() -> None:
    asked = re.compile(r"isolation\.(credentials|container) is|(?<!self)\.container is (not )?None")
    found = [path for path in GATE.rglob("*.py") if asked.search(path.read_text("utf-8"))]
    assert {path.relative_to(GATE).as_posix() for path in found} <= {"isolation/containers.py"}
