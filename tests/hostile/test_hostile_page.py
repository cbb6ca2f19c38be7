"""docs/security.md says what the table of attempts says, and what came of them."""

from __future__ import annotations

from arena import settings_text
from attempt import MODES
from page import ABOUT, HELD, PAGE, render, results_on
from table import ATTEMPTS

from gate.isolation.modes import IsolationMode
from gate.settings.load import parse_settings

TEXT = PAGE.read_text("utf-8")


def test_page_and_table_are_the_same() -> None:
    machine = ABOUT.search(TEXT)
    assert machine is not None
    assert render(results_on(TEXT), machine[1]) == TEXT, "run `make security` as root"


def test_every_attempt_was_made_and_held() -> None:
    results = results_on(TEXT)
    asked = {(one.name, mode) for one in ATTEMPTS for mode in MODES if mode in one.modes}
    left_out = {key for key in asked - results.keys() if key[1] is not IsolationMode.CONTAINER}
    assert left_out == set()
    assert set(results.values()) == {HELD}


def test_the_settings_of_every_attempt_are_ones_that_the_gate_reads() -> None:
    """A key that no longer exists would stop an attempt before what it tries."""
    for attempt in ATTEMPTS:
        text = settings_text(IsolationMode.NONE, attempt).replace("{root}", "/root")
        parse_settings(text.encode(), attempt.name)


def test_what_cannot_be_prevented_is_said() -> None:
    assert "**A training can lie.**" in TEXT
    assert "**A pull request can edit the workflow**" in TEXT
    assert "**The machine can be used up.**" in TEXT
