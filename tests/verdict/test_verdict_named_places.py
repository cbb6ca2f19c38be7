"""A line is stated as a fact where the commit's Python has it; all else is what the run names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

import pytest
from each_row import each_row
from pydantic import BaseModel
from report_outcomes import NONDETERMINISTIC, REPRODUCED, both, entry, judged, ran

from gate.diagnosis.diagnosis import CodePlace
from gate.errors import RunError
from gate.report.brief import brief_of
from gate.system.git.changes import Change, ChangedLines
from gate.verdict.assemble import fault_verdict
from gate.verdict.named_places import with_named_places
from gate.verdict.verdict import Finding, NextStep, Severity, Verdict

PLACE = re.compile(r"[\w./-]+\.py:\d+")
NAMED = re.compile(r"a line that the run names \([^)]*\)")


class Every(Mapping[str, int]):
    """A commit that has each file, with very many lines."""

    def __getitem__(self, name: str) -> int:
        return 10**6

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for one in value:
            yield from texts(one)
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields.keys() - {"code_place", "change", "command"}:
            yield from texts(getattr(value, name))


FAULT = fault_verdict(
    "9f2e", "2026-08-22T12:00:00+00:00", RunError("train.py:7 raised", file="train.py", line=7)
)
# without the lines of the change itself, which are git's word and no run's
DRIFT = judged(both(first="parameters", since=6, rate="0.002"), against=entry(ran(rate="0.001")))
SCENES = {"drift": DRIFT, "unequal": NONDETERMINISTIC, "same": REPRODUCED, "fault": FAULT}


@pytest.mark.parametrize("verdict", SCENES.values(), ids=SCENES)
def test_no_text_states_a_line_that_the_commit_does_not_hold(verdict: Verdict) -> None:
    made = with_named_places(verdict, {})
    spoken = (made.cause, made.findings, made.diagnosis, made.next_steps)
    assert [PLACE.findall(NAMED.sub("", text)) for text in texts(spoken) if PLACE.search(text)] == [
        [] for text in texts(spoken) if PLACE.search(text)
    ]
    # else nothing would be shown here
    assert verdict in (REPRODUCED, DRIFT) or any(NAMED.search(text) for text in texts(spoken))


@pytest.mark.parametrize("verdict", SCENES.values(), ids=SCENES)
def test_what_the_commit_holds_stays_as_it_is(verdict: Verdict) -> None:
    assert with_named_places(verdict, Every()) == verdict


def test_the_cause_says_who_names_the_line() -> None:
    lines = {str(PurePosixPath(NONDETERMINISTIC.workdir, "train.py")): 28}
    known = brief_of(with_named_places(NONDETERMINISTIC, lines)).happened
    assert "train.py:28 " in known
    assert "the run names" not in known
    told = brief_of(with_named_places(NONDETERMINISTIC, {})).happened
    assert "line that the run names (train.py:28) " in told


@each_row(
    ("file", "line"),
    [
        ("README.md", 3),
        (".github/workflows/ci.yml", 9),
        ("a b.py", 2),
        ("train.py", 8),
        ("x.py", 1),
    ],
)
def test_any_file_that_is_not_the_commits_python_is_only_named(file: str, line: int) -> None:
    place = CodePlace(file=file, line=line)
    finding = Finding(
        code="seed-differs",
        severity=Severity.WARNING,
        message=f"{file}:{line} draws; see http://x.y:80 and step:3",
        code_place=place,
    )
    steps = (NextStep(text="Look at train.py:7.", command=f"sed -n {line}p {file}:{line}"),)
    verdict = REPRODUCED.model_copy(update={"findings": (finding,), "next_steps": steps})
    made = with_named_places(verdict, {"train.py": 7})
    assert made.findings[0].message == (
        f"a line that the run names ({file}:{line}) draws; see http://x.y:80 and step:3"
    )
    assert (made.findings[0].code_place, made.next_steps) == (place, steps)


def test_a_changed_line_in_a_folder_with_a_space_is_one_place() -> None:
    hunk = ChangedLines(file="research/nlp model/train.py", first=5, last=6, gone=1)
    steps = (NextStep(text=f"Undo the change to {hunk.place}."),)
    verdict = REPRODUCED.model_copy(
        update={"change": Change(hunks=(hunk,)), "next_steps": steps, "workdir": "research"}
    )
    assert with_named_places(verdict, {"research/train.py": 7}).next_steps == steps
