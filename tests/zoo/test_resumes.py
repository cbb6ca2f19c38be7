"""Each resumed script lacks one line of a correct one, and the gate names what that restores."""

from __future__ import annotations

import ast

import pytest
from each_row import each_row
from resumes import ALL, SCRIPT, Resumed, plain, told

CASES = {case.name: case for case in ALL}
# of each way to save and resume one; `make test-zoo` resumes all
SAMPLE = (
    "correct-on-signal",
    "correct-two-optimizers",
    "correct-ranks",
    "correct-folder-fsdp",
    "moment",
    "second-optimizer",
    "rank-state",
)


def test_there_are_scripts_that_lack_one_thing_and_correct_ones() -> None:
    correct = [case for case in ALL if case.kind is None and not case.torn]
    assert len(ALL) - len(correct) >= 14
    assert len(correct) >= 6


@each_row("case", ALL, ids=CASES)
def test_each_is_a_script(case: Resumed) -> None:
    ast.parse(case.script)


def test_a_script_that_lacks_something_lacks_one_line() -> None:
    restored = [line.rpartition("# ")[2] for line in SCRIPT.splitlines() if "  # " in line]
    assert len(restored) == 9
    whole = plain().splitlines()
    assert all(len(whole) - len(plain(name).splitlines()) == 1 for name in restored)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_what_a_script_lacks_is_named_and_no_correct_one_is_accused(name: str) -> None:
    row = told(CASES[name])
    assert row.right, f"{row.outcome}: {row.sentence}"
