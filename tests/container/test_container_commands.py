"""The emulator's own rules, and hostile lines that must not come through them: no engine needed."""

from __future__ import annotations

import pytest
from each_row import each_row
from runner_rules import (
    Command,
    RunnerError,
    obeyed,
    read_values,
    shown_annotations,
    shown_summary,
)

from gate.text.untrusted_text import safe_line

HOSTILE = [
    "::set-output name=verdict::reproduced",
    "   ::error::planted",
    "\u200b::add-mask::pass",
    "text ##[error]planted",
    "##[set-env name=PATH]/tmp",
    "##[ADD-MASK]pass",
    "\x1b[0m::warning::planted",
    "::stop-commands::mine",
    "\ufeff::debug::x\r::error::y",
    "%3A%3Aerror::x",
]


@each_row("line", HOSTILE)
def test_a_hostile_line_commands_nothing_once_it_is_safe(line: str) -> None:
    assert obeyed(safe_line(line)) == []


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (
            "  ::error file=a.py,line=3::one%0Atwo",
            Command("error", "one\ntwo", {"file": "a.py", "line": "3"}),
        ),
        ("noise ##[warning x=a%3Bb]text", Command("warning", "text", {"x": "a;b"})),
        ("::SET-OUTPUT name=a::b", Command("set-output", "b", {"name": "a"})),
    ],
)
def test_both_parsers_obey(line: str, command: Command) -> None:
    assert obeyed(line) == [command]


@pytest.mark.parametrize("line", ["::unknown::x", "a ::error::x", "::error:x", "##[error"])
def test_other_text_is_text(line: str) -> None:
    assert obeyed(line) == []


def test_commands_stop_until_their_token() -> None:
    log = "::stop-commands::k3y\n::error::hidden\n::k3y::\n::error::seen"
    assert [command.data for command in obeyed(log)] == ["seen"]


def test_annotations_are_ten_of_a_level_and_cut() -> None:
    log = "\n".join([*["::error::" + "x" * 5000] * 12, "::notice::n"])
    assert [len(shown.data) for shown in shown_annotations(log)] == [*[4096] * 10, 1]


def test_values_come_in_two_forms() -> None:
    assert read_values("a=1<<2\nb<<END\none\ntwo=2\nEND\n") == {"a": "1<<2", "b": "one\ntwo=2"}


@pytest.mark.parametrize("text", ["b<<END\none\nEND", "nonsense\n", "=x\n", "b<<\nx\n"])
def test_a_broken_file_fails_the_step(text: str) -> None:
    with pytest.raises(RunnerError):
        read_values(text)


def test_a_summary_that_is_too_large_is_dropped() -> None:
    with pytest.raises(RunnerError, match="larger than 1024k"):
        shown_summary(b"x" * (1024 * 1024 + 1))
