"""A training that tries, run through the whole gate as a program, in every isolation.

`table.py` has the attempts; `make test` makes some, `make test-slow` and `make security` all.
"""

from __future__ import annotations

import os
import re

import pytest
from abilities import promised, why_not
from arena import ROOT
from attempt import MODES, Attempt
from install_arena import runs_with_pip_alone
from table import ATTEMPTS
from trials import CONTROLS, TOGETHER, try_controls, try_one, try_together

from gate.isolation.modes import IsolationMode


def _case(mode: IsolationMode, attempt: Attempt) -> object:
    marks = [] if attempt.fast else [pytest.mark.slow]
    if mode is IsolationMode.CONTAINER:
        marks.append(pytest.mark.docker)
    return pytest.param(mode, attempt, id=f"{attempt.name}-{mode.value}", marks=marks)


CASES = [
    _case(mode, attempt) for attempt in ATTEMPTS if not attempt.together for mode in attempt.modes
]


@pytest.mark.parametrize(("mode", "attempt"), CASES)
def test_the_attempt_fails_and_the_verdict_is_right(mode: IsolationMode, attempt: Attempt) -> None:
    if reason := why_not(mode):
        pytest.skip(reason)
    assert try_one(mode, attempt) == []


@pytest.mark.parametrize(
    "mode", [IsolationMode.UID, pytest.param(IsolationMode.CONTAINER, marks=pytest.mark.docker)]
)
def test_looking_around_finds_nothing(mode: IsolationMode) -> None:
    if reason := why_not(mode):
        pytest.skip(reason)
    assert try_together(mode) == {one.name: [] for one in TOGETHER if promised(mode, one)}


@pytest.mark.slow
def test_the_attempts_and_the_checks_are_real() -> None:
    """With root's account and no sandbox the same scripts get what they want, and it is noticed."""
    if os.geteuid() != 0:
        pytest.skip("needs root, which has nothing in its way")
    got, faults = try_controls()
    assert got == {one.name: True for one in CONTROLS}
    assert "a secret stands in the log" in faults


SECRET_NAME = re.compile(
    r"\"([A-Z][A-Z0-9_]*_(?:TOKEN|PASSWORD|PASSPHRASE|PIN|SECRET|KEY|TOKEN_FILE|PKCS11_PIN))\""
)
# Names of files beside the home's, whose closing the tests of what they are read for hold; and the
# command line's own names of secrets that are planted as inputs.
NO_SECRETS = {
    *("VAULT_TOKEN_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
}
POTENT = {
    *("lock-no-binary-all", "lock-no-binary-one", "lock-only-binary-none", "lock-path"),
    *("lock-file-address", "lock-include"),
}


@pytest.mark.slow
@pytest.mark.parametrize("attempt", [one for one in ATTEMPTS if one.name in POTENT])
def test_pip_itself_would_run_what_the_lock_brings(attempt: Attempt) -> None:
    """Else an attempt that fails would show nothing."""
    if reason := why_not(IsolationMode.UID):
        pytest.skip(reason)
    assert runs_with_pip_alone(attempt)


def test_every_credential_that_the_program_names_is_planted() -> None:
    """A name in the code that holds a secret, and what it is handed for, is in the arena."""
    named = {
        name
        for path in (ROOT / "gate").rglob("*.py")
        for name in SECRET_NAME.findall(path.read_text("utf-8"))
    }
    assert {"INPUT_TOKEN", "VAULT_TOKEN", "REPRO_GATE_REGISTRY_PASSWORD"} <= named
    arena = (ROOT / "tests/hostile/arena.py").read_text("utf-8")
    unplanted = {name for name in named - NO_SECRETS if f'"{name}"' not in arena}
    assert unplanted == set()
    assert all(f'"{prefix}' in arena for prefix in ("INPUT_", "ACTIONS_", "PIP_", "UV_"))


def test_the_table_is_sound() -> None:
    names = [attempt.name for attempt in ATTEMPTS]
    assert len(set(names)) == len(names) >= 40
    assert all(attempt.tells == 1 for attempt in TOGETHER)
    assert all(set(attempt.modes) <= set(MODES) for attempt in ATTEMPTS)
    assert all(IsolationMode.NONE not in attempt.modes for attempt in TOGETHER)
