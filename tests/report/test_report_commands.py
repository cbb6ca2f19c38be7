"""Annotations, read back as the runner reads them."""

from __future__ import annotations

import re

from each_row import each_row
from hypothesis import given
from report_hostile import HOSTILE, poisoned
from report_outcomes import BASELINE_CHANGE, CODE_DRIFT, ERROR, NONDETERMINISTIC, REPRODUCED

from gate.diagnosis.diagnosis import CodePlace
from gate.errors import RunError
from gate.report.runner_files import annotation_commands, fault_annotation
from gate.verdict.assemble import fault_verdict
from gate.verdict.verdict import Finding, Severity

COMMAND = re.compile(
    r"::(error|warning|notice) (?:file=[^,:\r\n]+,line=\d+,)?title=([^,:\r\n]*)::([^\r\n]*)\Z"
)


def test_a_failure_is_an_error() -> None:
    assert annotation_commands(CODE_DRIFT, {})[0] == (
        "::error file=train.py,line=31,title=repro-gate failed%3A this change moves the "
        "result::Loss at step 7: 1.338 "
        "instead of 1.336 (+0.2 %25, later up to 3.6 %25). Cause: lr 0.001 → 0.002. "
        "Is it this change? Yes. Same machine and packages as the baseline."
    )


def test_a_pass_is_a_notice() -> None:
    assert annotation_commands(REPRODUCED, {}) == (
        (
            "::notice title=repro-gate passed%3A same result%2C bit for bit::Every step, value and "
            "tensor equals the baseline, bit for bit. Is it this change? No change in the "
            "result."
        ),
    )


def test_the_blamed_line_is_annotated_where_the_repository_has_it() -> None:
    verdict = NONDETERMINISTIC.model_copy(update={"workdir": "examples/digits"})
    place = "file=examples/digits/train.py,line=28,"
    told = annotation_commands(verdict, {"examples/digits/train.py": 28})
    assert told[0].startswith(f"::error {place}title=repro-gate failed")
    assert f"::warning {place}title=repro-gate%3A settings-overridden::" in "\n".join(told)


@each_row(
    ("file", "line"),
    [
        *((file, 3) for file in ("/etc/passwd", "../train.py", "a/../../train.py")),
        *((file, 3) for file in (".github/workflows/ci.yml", "README.md", "other.py")),
        *(("train.py", line) for line in (0, -1, 8)),
    ],
)
def test_a_line_that_the_commit_does_not_hold_is_not_annotated(file: str, line: int) -> None:
    """A run may name any: what is no line of the commit's Python is only what the run names."""
    place = CodePlace(file=file, line=line)
    finding = Finding(code="seed-differs", severity=Severity.WARNING, message="m", code_place=place)
    verdict = REPRODUCED.model_copy(update={"findings": (finding,)})
    told = annotation_commands(verdict, {"train.py": 7})
    assert told[0] == f"::warning title=repro-gate%3A seed-differs::m The run names {file}:{line}."


def test_the_line_that_raised_is_annotated_once() -> None:
    fault = RunError("run strict-1: python train.py exited with 1", file="train.py", line=7)
    verdict = fault_verdict("9f2e", "2026-08-22T12:00:00+00:00", fault)
    assert annotation_commands(verdict, {"train.py": 7}) == (
        (
            "::error file=train.py,line=7,title=repro-gate could not check::Run strict-1: python "
            "train.py exited with 1. Is it this change? Not known. Nothing was judged."
        ),
    )


def test_findings_follow_with_their_remedies() -> None:
    assert annotation_commands(BASELINE_CHANGE, {})[0] == (
        "::warning title=repro-gate%3A policy-changed::this pull request includes a new "
        ".repro-gate/baseline, and it decided the outcome. Merge only if the new result is "
        "what you want."
    )


def test_a_fault_is_an_error() -> None:
    fault = RunError("run strict-1 timed out", hint="Raise train.timeout_seconds.")
    assert fault_annotation(fault) == (
        "::error title=repro-gate%3A no verdict::run strict-1 timed out. "
        "Raise train.timeout_seconds."
    )


def test_the_tenth_of_a_level_counts_the_rest() -> None:
    finding = Finding(code="dirty-tree", severity=Severity.WARNING, message="m")
    lines = annotation_commands(REPRODUCED.model_copy(update={"findings": (finding,) * 13}), {})
    warnings = [line for line in lines if line.startswith("::warning ")]
    assert len(warnings) == 10
    assert warnings[-1].endswith("::4 more of these are in the job summary.")


@given(HOSTILE)
def test_hostile_text_stays_one_annotation(text: str) -> None:
    lines = annotation_commands(poisoned(BASELINE_CHANGE, text), {})
    assert len(lines) == 1 + len(BASELINE_CHANGE.findings)
    assert all(COMMAND.match(line) for line in lines)


def test_a_message_is_cut_where_the_runner_would() -> None:
    line = annotation_commands(ERROR.model_copy(update={"cause": "x" * 9000, "findings": ()}), {})[
        0
    ]
    assert line.startswith("::error title=repro-gate could not check::Xxx")
    assert line.endswith("x…")
    assert len(line.partition("::")[2].partition("::")[2]) == 4096
