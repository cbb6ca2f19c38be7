"""What a training took from its surroundings, as its untrusted files tell it."""

from __future__ import annotations

import pytest
from harness_folder import HarnessFolder, source_line

from gate.errors import EvidenceError
from gate.evidence.harness_files import MAX_NOTED_LINES, find_processes
from gate.evidence.harness_logs import read_sources
from gate.evidence.observations import Source
from gate.system.files.files import LocalFiles


def _read(files: LocalFiles, harness: HarnessFolder) -> tuple[Source, ...]:
    return read_sources(files, harness.path, find_processes(files, harness.path))


def test_a_source_has_its_line_and_the_stack_above_it(
    files: LocalFiles, harness: HarnessFolder
) -> None:
    harness.sources(source_line())
    (source,) = _read(files, harness)
    assert (source.kind, source.call, source.place) == ("entropy", "uuid.uuid4", "train.py:7")
    assert source.stack == ("train.py:7 shuffled", "train.py:30 <module>")


def test_what_many_workers_tell_stands_there_once(
    files: LocalFiles, harness: HarnessFolder
) -> None:
    for pid in (11, 12, 13):
        harness.of(rank=0, pid=pid).sources(source_line(worker=True))
    assert len(_read(files, harness)) == 1


def test_names_are_shown_as_plain_text(files: LocalFiles, harness: HarnessFolder) -> None:
    harness.sources(source_line(call="a\x1b[31m", file="b\x00", stack=["c\u202e"]))
    (source,) = _read(files, harness)
    assert "\x1b" not in source.call
    assert "\x00" not in source.place
    assert "\u202e" not in source.stack[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "guess"},
        {"step": 0},
        {"line": -1},
        {"call": "x" * 201},
        {"stack": ["a"] * 4},
        {"worker": None},
        {"more": 1},
    ],
)
def test_a_malformed_line_is_refused(
    files: LocalFiles, harness: HarnessFolder, changes: dict[str, object]
) -> None:
    harness.sources(source_line(**changes))
    with pytest.raises(EvidenceError, match=r"sources-r0-11\.jsonl: line 1"):
        _read(files, harness)


def test_more_lines_than_the_harness_writes_are_refused(
    files: LocalFiles, harness: HarnessFolder
) -> None:
    harness.sources(*(source_line(line=line) for line in range(MAX_NOTED_LINES + 1)))
    with pytest.raises(EvidenceError, match="201 lines, the harness writes 200 at most"):
        _read(files, harness)
