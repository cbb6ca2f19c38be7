"""Annotations, read back as the runner reads them."""

from __future__ import annotations

import re

from hypothesis import given
from report_hostile import HOSTILE, poisoned
from report_outcomes import BASELINE_CHANGE, CODE_DRIFT, REPRODUCED

from gate.errors import RunError
from gate.records.verdict import Finding, Severity
from gate.report.comment.commands import annotation_commands, fault_annotation

COMMAND = re.compile(r"::(error|warning|notice) title=([^,:\r\n]*)::([^\r\n]*)\Z")


def test_a_failure_is_an_error() -> None:
    assert annotation_commands(CODE_DRIFT)[0] == (
        "::error title=repro-gate failed%3A code drift::differs from the baseline of this "
        "environment from step 6 on: parameters; loss at step 7 is 1.338445, expected "
        "1.335773"
    )


def test_a_pass_is_a_notice_even_without_a_cause() -> None:
    verdict = REPRODUCED.model_copy(update={"cause": ""})
    assert annotation_commands(verdict) == (
        "::notice title=repro-gate passed%3A reproduced::repro-gate passed: reproduced",
    )


def test_findings_follow_with_their_remedies() -> None:
    assert annotation_commands(BASELINE_CHANGE)[0] == (
        "::warning title=repro-gate%3A policy-changed::this pull request brings a new "
        ".repro-gate/baseline.json, and it decided the outcome. Merge only if the new result is "
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
    lines = annotation_commands(REPRODUCED.model_copy(update={"findings": (finding,) * 13}))
    warnings = [line for line in lines if line.startswith("::warning ")]
    assert len(warnings) == 10
    assert warnings[-1].endswith("::4 more of these are in the job summary.")


@given(HOSTILE)
def test_hostile_text_stays_one_annotation(text: str) -> None:
    lines = annotation_commands(poisoned(BASELINE_CHANGE, text))
    assert len(lines) == 1 + len(BASELINE_CHANGE.findings)
    assert all(COMMAND.match(line) for line in lines)


def test_a_message_is_cut_where_the_runner_would() -> None:
    line = annotation_commands(REPRODUCED.model_copy(update={"cause": "x" * 9000}))[0]
    assert line.endswith("x…")
    assert len(line.partition("::")[2].partition("::")[2]) == 4096
