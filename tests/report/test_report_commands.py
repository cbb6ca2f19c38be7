"""Annotations, and the training's output in the log, read back as the runner reads them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_hostile import HOSTILE, poisoned
from report_outcomes import BASELINE_CHANGE, CODE_DRIFT, REPRODUCED

from gate.errors import RunError
from gate.records.verdict import Finding, Severity
from gate.report.commands import LOG_LINE_LIMIT, annotation_commands, defused_log, fault_annotation

COMMAND = re.compile(r"::(error|warning|notice) title=([^,:\r\n]*)::([^\r\n]*)\Z")


def runner_sees_a_command(line: str) -> bool:
    """As the runner looks for one, after dropping what a culture-aware comparison skips."""
    seen = re.sub(r"[\u00ad\u034f\u200b-\u200f\u2060-\u206f\ufe00-\ufe0f\ufeff]", "", line)
    return seen.lstrip().startswith("::") or "##[" in seen


def test_a_failure_is_an_error() -> None:
    assert annotation_commands(CODE_DRIFT)[0] == (
        "::error title=repro-gate failed%3A code drift::differs from the baseline: loss at step 7 "
        "is 1.338445, expected 1.335773"
    )


def test_a_pass_is_a_notice_even_without_a_cause() -> None:
    verdict = REPRODUCED.model_copy(update={"cause": ""})
    assert annotation_commands(verdict) == (
        "::notice title=repro-gate passed%3A reproduced::repro-gate passed: reproduced",
    )


def test_findings_follow_with_their_remedies() -> None:
    assert annotation_commands(BASELINE_CHANGE)[0] == (
        "::warning title=repro-gate%3A baseline-changed::this pull request changes "
        ".repro-gate/baseline.json. Merge only if the new result is what you want."
    )


def test_a_fault_is_an_error() -> None:
    fault = RunError("run strict-1 timed out", hint="Raise train.timeout_seconds.")
    assert fault_annotation(fault) == (
        "::error title=repro-gate%3A no verdict::run strict-1 timed out. "
        "Raise train.timeout_seconds."
    )


def test_the_tenth_of_a_level_counts_the_rest() -> None:
    finding = Finding(code="dirty-tree", severity=Severity.WARNING, message="m")
    lines = annotation_commands(REPRODUCED.model_copy(update={"findings": (finding,) * 13}))
    warnings = [line for line in lines if line.startswith("::warning ")]
    assert len(warnings) == 10
    assert warnings[-1].endswith("::4 more of these are in the job summary.")


@given(HOSTILE)
def test_hostile_text_stays_one_annotation(text: str) -> None:
    lines = annotation_commands(poisoned(BASELINE_CHANGE, text))
    assert len(lines) == 4
    assert all(COMMAND.match(line) for line in lines)


def test_a_message_is_cut_where_the_runner_would() -> None:
    line = annotation_commands(REPRODUCED.model_copy(update={"cause": "x" * 9000}))[0]
    assert line.endswith("x…")
    assert len(line.partition("::")[2].partition("::")[2]) == 4096


@pytest.mark.parametrize(
    ("output", "lines"),
    [
        (b"", ()),
        (b"step 1\nstep 2\n", ("| step 1", "| step 2")),
        (b"10%\r 20%\r\n30%", ("| 10%", "|  20%", "| 30%")),
        (b"::error::no", ("| : :error: :no",)),
        (b"text ##[error]no", ("| text ## [error]no",)),
        (b"\x1b[31mred\x1b[0m \xff", ("| red \ufffd",)),
    ],
)
def test_output_is_shown_as_text(output: bytes, lines: tuple[str, ...]) -> None:
    assert defused_log(output) == lines


@given(HOSTILE.map(lambda text: text.encode()) | st.binary())
def test_no_output_is_a_command(output: bytes) -> None:
    for line in defused_log(output):
        assert not runner_sees_a_command(line)
        assert len(line.splitlines()) == 1


def test_a_long_line_is_cut() -> None:
    assert len(defused_log(b"x" * 100_000)[0]) == LOG_LINE_LIMIT + len("| ")
