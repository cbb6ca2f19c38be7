"""The job log, read back by the runner's rules: a training shows in it, and never commands."""

from __future__ import annotations

import io

import pytest
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st
from report_hostile import HOSTILE
from runner_rules import commands

from gate.isolation.training_output import LineFeed
from gate.system.console import MAX_LINES, JobLog, quoted

ATTEMPTS = (
    "::error::no",
    " \t::add-mask::PASS",
    "text ##[error]no",
    "##[set-env name=PATH;]/evil",
    "progress\r::set-output name=verdict::reproduced",
    "progress\r##[save-state name=x]1",
    "::STOP-COMMANDS::guess",
    "\u200b::warning::no",
    "#\u034f#[group]",
    "\x1b[0m::notice::no",
)


def played(output: bytes, *, verbose: bool = True) -> str:
    """What the log holds after a run that printed this."""
    stream = io.StringIO()
    log = JobLog(stream, verbose=verbose)
    with log.running("strict-1"):
        feed = LineFeed(log.output)
        feed.feed(output)
        feed.finish()
    return stream.getvalue()


@each_row("attempt", ATTEMPTS)
def test_the_rules_of_these_tests_see_the_attempts(attempt: str) -> None:
    """Without the gate each would be obeyed, but for those that only a broken terminal shows."""
    assert commands(attempt.replace("\x1b[0m", "") + "\n::debug::x") != ["debug"]


@each_row("attempt", ATTEMPTS)
def test_no_attempt_is_obeyed(attempt: str) -> None:
    assert commands(played(attempt.encode()) + "::debug::the gate's own") == ["debug"]
    assert commands(f"{quoted(attempt)}\n::debug::the gate's own") == ["debug"]


@given(HOSTILE.map(lambda text: text.encode()) | st.binary())
def test_no_output_is_obeyed(output: bytes) -> None:
    assert commands(played(output)) == []
    assert commands(quoted(output.decode("utf-8", "replace"))) == []


def test_the_guard_alone_would_hold() -> None:
    stop, *between, resume = played(b"").splitlines()
    text = "\n".join([stop, *between, *ATTEMPTS[:7], resume, "::debug::after"])
    assert commands(text) == ["debug"]


def test_every_guard_has_a_token_of_its_own() -> None:
    first, second = (quoted("same").splitlines()[0] for _ in range(2))
    assert first != second
    assert len(first.removeprefix("::stop-commands::")) == 32


def test_a_training_is_shown_when_asked_for_and_within_bounds() -> None:
    assert "  | epoch 1\n" in played(b"epoch 1\n")
    assert "epoch 1" not in played(b"epoch 1\n", verbose=False)
    stream = io.StringIO()
    log = JobLog(stream, verbose=True)
    with log.running("strict-1"):
        for number in range(3 * MAX_LINES):
            log.output(b"line %d" % number)
    shown = [line for line in stream.getvalue().splitlines() if line.startswith("  | ")]
    assert len(shown) == MAX_LINES
    assert shown[-1].endswith("evidence/*/output.txt has what was kept ...]")


def test_commands_are_obeyed_again_after_a_fault() -> None:
    stream = io.StringIO()
    log = JobLog(stream)
    with pytest.raises(KeyError), log.running("strict-1"):
        raise KeyError
    assert commands(stream.getvalue() + "::debug::after") == ["debug"]
