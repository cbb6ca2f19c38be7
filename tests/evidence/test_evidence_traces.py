"""`trace-rR-P.jsonl` is untrusted: sound, broken, too long and contradicting files."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from each_row import each_row
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_cases import chain

from gate.errors import EvidenceError
from gate.evidence.harness_logs import read_traces
from gate.system.files.files import LocalFiles

FILES = LocalFiles()
END = {"kind": "end", "why": "done", "calls": 3, "unread": 0}
CALLS = [{"kind": "call", **call.model_dump(mode="json")} for call in chain("abc").calls]
LINES = {"kind": "lines", "lines": [["train.py", 3, 1]]}


def left(folder: Path, *lines: object, rank: int = 0, pid: int = 7) -> Path:
    """A folder with the steps and the trace of a process."""
    (folder / f"steps-r{rank}-{pid}.jsonl").write_text("", encoding="utf-8")
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    (folder / f"trace-r{rank}-{pid}.jsonl").write_text(text, encoding="utf-8")
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(EvidenceError) as raised:
        read_traces(FILES, folder)
    return raised.value.message


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    (found,) = read_traces(FILES, left(tmp_path, *CALLS, LINES, END))
    assert [call.model_dump() for call in found.calls] == [
        call.model_dump() | {"kind": "call"} for call in chain("abc").calls
    ]
    assert [(line.file, line.line, line.call) for line in found.lines] == [("train.py", 3, 1)]
    assert (found.ended, found.unread) == ("done", 0)


def test_a_process_that_took_no_step_is_passed_over(tmp_path: Path) -> None:
    left(tmp_path, *CALLS, END)
    (tmp_path / "steps-r0-7.jsonl").unlink()
    assert read_traces(FILES, tmp_path) == ()


def test_a_process_that_was_killed_leaves_a_trace_without_an_end(tmp_path: Path) -> None:
    (found,) = read_traces(FILES, left(tmp_path, *CALLS))
    assert (len(found.calls), found.ended) == (3, "")


@each_row(
    ("lines", "told"),
    [
        (["{"], "trace-r0-7.jsonl: line 1: not valid JSON"),
        (["[]"], "trace-r0-7.jsonl: line 1: no record of a trace"),
        ([{"kind": ["call"]}], "trace-r0-7.jsonl: line 1: no record of a trace"),
        ([CALLS[1]], "trace-r0-7.jsonl: line 1: call 1 is out of order"),
        ([END, CALLS[0]], "trace-r0-7.jsonl: line 2: comes after the last record"),
        ([CALLS[0] | {"operator": "x" * 121}], "trace-r0-7.jsonl: line 1: 1 error"),
        ([CALLS[0] | {"inputs": CALLS[0]["outputs"] * 49}], "line 1: 1 error"),
        ([CALLS[0] | {"number": 20_000}], "trace-r0-7.jsonl: line 1: 1 error"),
        (["x" * 70_000], "trace-r0-7.jsonl: line 1: longer than 65,536 bytes"),
        ([{"kind": "lines", "lines": [["t.py", 1, 0]] * 900}] * 23, "more than 20,000 lines"),
    ],
)
def test_a_broken_trace_is_refused_with_its_line(
    tmp_path: Path, lines: list[object], told: str
) -> None:
    assert told in refusal(left(tmp_path, *lines))


def test_two_traces_of_one_rank_are_refused(tmp_path: Path) -> None:
    left(tmp_path, *CALLS, END)
    left(tmp_path, *CALLS, END, pid=8)
    assert refusal(tmp_path) == "two processes of one rank left a trace"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    left(tmp_path, *CALLS, END)
    path = tmp_path / "trace-r0-7.jsonl"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert "trace-r0-7.jsonl: cannot be read" in refusal(tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 400), st.binary(min_size=1, max_size=6))
def test_damage_anywhere_is_a_trace_or_a_named_fault(
    tmp_path: Path, place: int, damage: bytes
) -> None:
    left(tmp_path, *CALLS, END)
    path = tmp_path / "trace-r0-7.jsonl"
    sound = path.read_bytes()
    path.write_bytes(sound[:place] + damage + sound[place + len(damage) :])
    told = "trace-r0-7.jsonl"
    with suppress(EvidenceError):
        told = str(len(read_traces(FILES, tmp_path)))
    assert told in {"1", "trace-r0-7.jsonl"}
