"""The history file: bounded, written without parsing, read without trusting."""

from __future__ import annotations

import pytest
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from gate.errors import DocumentError
from gate.verdict.history_lines import (
    MAX_HISTORY_BYTES,
    MAX_HISTORY_LINE_BYTES,
    MAX_HISTORY_LINES,
    HistoryLine,
    read_history,
    with_line,
)
from gate.verdict.verdict import Outcome


def line(number: int = 0, **changed: object) -> HistoryLine:
    told = {
        "judged_at": "2026-03-01T12:00:00+00:00",
        "commit": f"{number:040x}",
        "outcome": Outcome.REPRODUCED,
        "passes": True,
        "metric": "loss",
        "last": "2.125",
        "cost_ratio": 1.04,
    }
    return HistoryLine.model_validate(told | changed)


def test_what_was_written_is_read_and_a_line_is_not_written_twice() -> None:
    data = with_line(with_line(b"", line(1)), line(2))
    assert read_history(data, "x").lines == (line(1), line(2))
    assert with_line(data, line(2)) == data


def test_the_last_200_are_kept() -> None:
    data = b""
    for number in range(MAX_HISTORY_LINES + 3):
        data = with_line(data, line(number))
    found = read_history(data, "x")
    assert len(found.lines) == MAX_HISTORY_LINES
    assert found.lines[-1] == line(MAX_HISTORY_LINES + 2)


def test_the_longest_line_fits() -> None:
    longest = line(
        metric="\N{ROCKET}" * 60,
        last="9" * 40,
        cost_ratio=1.2345678901234567e-300,
        author="\N{ROCKET}" * 60,
        runner="\N{ROCKET}" * 60,
        run_id="r" * 100,
        repository="o" * 200,
        gate_id="g" * 40,
        environment="0" * 16,
        spread=1.2345678901234567e-300,
        step_seconds=1.2345678901234567e-300,
        training_seconds=1.2345678901234567e-300,
        seconds=1.2345678901234567e-300,
        uncovered_operators=2**30,
    )
    assert read_history(with_line(b"", longest), "x").lines == (longest,)


@each_row(
    "broken",
    [
        b"{",
        b"[]",
        b"null",
        b"[" * 1400,
        b"\xff",
        b'{"schema_version": "repro-gate.history/1"}',
        b'{"schema_version": "repro-gate.history/2", "commit": "--option"}',
        b'{"commit": "' + b"0" * MAX_HISTORY_LINE_BYTES + b'"}',
    ],
)
def test_a_broken_line_is_left_out_and_counted(broken: bytes) -> None:
    found = read_history(broken + b"\n" + with_line(b"", line()), "default.jsonl")
    assert found.lines == (line(),)
    assert found.problem == "default.jsonl: 1 of 2 lines are not readable"


def test_a_file_that_is_too_large_is_refused() -> None:
    with pytest.raises(DocumentError) as caught:
        read_history(b"\n" * (MAX_HISTORY_BYTES + 1), "default.jsonl")
    assert "the limit is 800,000" in caught.value.message
    assert "starts a new one" in caught.value.hint


@given(st.binary(max_size=4000))
def test_whatever_was_there_the_new_line_is_the_last_and_the_file_is_bounded(old: bytes) -> None:
    made = with_line(old, line())
    assert made.isascii()
    assert len(made) <= MAX_HISTORY_BYTES + MAX_HISTORY_LINES
    assert read_history(made[-MAX_HISTORY_BYTES:], "x").lines[-1] == line()
