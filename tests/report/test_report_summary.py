"""The job summary."""

from __future__ import annotations

import re

from report_cases import LINKS, delta, tensor
from report_hostile import poisoned
from report_outcomes import CODE_DRIFT, REPRODUCED

from gate.report.comment import SUMMARY_BYTES, summary_text


def test_the_summary_says_what_the_outcome_means() -> None:
    text = summary_text(REPRODUCED, LINKS)
    assert text.startswith("### ✅ repro-gate passed: same result, bit for bit\n")
    assert "Every step, value and tensor equals the baseline, bit for bit." in text


def test_short_tables_lie_open_and_complete() -> None:
    text = summary_text(CODE_DRIFT, LINKS)
    assert "#### Baseline: numbers that differ (36)" in text
    assert len(re.findall(r"^\| `loss` \| \d", text, re.MULTILINE)) == 18
    assert "<details>" not in text


def test_long_tables_are_folded() -> None:
    assert CODE_DRIFT.baseline is not None
    metrics = tuple(delta(step, 0.1, within=False) for step in range(1, 60))
    many = CODE_DRIFT.baseline.model_copy(update={"metrics": metrics})
    text = summary_text(CODE_DRIFT.model_copy(update={"baseline": many}), LINKS)
    assert "<details><summary>Baseline: numbers that differ (59)</summary>" in text


def test_the_summary_is_never_too_long() -> None:
    assert CODE_DRIFT.baseline is not None
    tensors = tuple(tensor(f"{index}{'`' * 120}") for index in range(2000))
    many = CODE_DRIFT.baseline.model_copy(update={"tensors": tensors})
    text = summary_text(CODE_DRIFT.model_copy(update={"baseline": many}), LINKS)
    assert SUMMARY_BYTES - 3000 < len(text.encode()) <= SUMMARY_BYTES
    assert text.count("<details>") == text.count("</details>") == 1


def test_hostile_text_does_not_end_a_fold() -> None:
    # a command, a drawing and a change are in a fenced block, where nothing is a tag
    bare = {"next_steps": (), "series": (), "change": None}
    verdict = poisoned(CODE_DRIFT, "</details><script>").model_copy(update=bare)
    text = summary_text(verdict, LINKS)
    assert "<script" not in text
    assert "</details>" not in text
