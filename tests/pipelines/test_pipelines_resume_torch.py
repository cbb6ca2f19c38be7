"""A training whose optimizers step one after the other is interrupted between two iterations."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked_trainings import ForkedBench
from resumes import SECOND, TWO, Resumed, gated

from gate.diagnosis.diagnosis import ResumeState
from gate.verdict.verdict import Outcome

pytestmark = pytest.mark.torch


def test_each_of_two_optimizers_has_taken_the_last_step_before_the_border(tmp_path: Path) -> None:
    verdict = gated(Resumed(name="two", script=TWO), tmp_path, ForkedBench)
    assert verdict.outcome is Outcome.NO_BASELINE
    assert verdict.resume is not None
    assert verdict.resume.state is ResumeState.EXACT


def test_a_second_optimizer_that_is_not_restored_is_no_training_that_does_not_repeat(
    tmp_path: Path,
) -> None:
    verdict = gated(Resumed(name="lacking", script=TWO.replace(SECOND, "")), tmp_path, ForkedBench)
    assert verdict.outcome is Outcome.RESUME_DIFFERS
    assert verdict.diagnosis is not None
    assert verdict.diagnosis.cause == (
        "the second optimizer starts without its state: the momentum (momentum_buffer) is missing"
    )
