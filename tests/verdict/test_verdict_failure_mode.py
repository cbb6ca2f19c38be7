"""Each verdict carries the failure mode that its facts prove, and never another one."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from each_row import each_row
from report_cases import BASE, COMMIT
from report_outcomes import CASES, JUDGED_AT, REQUEST, judged, ran

from gate.comparison.differences import EventKind
from gate.diagnosis.diagnosis import CauseClass, Diagnosis
from gate.errors import RunError
from gate.text.json_text import canonical_sha256
from gate.verdict.assemble import error_verdict
from gate.verdict.failure_mode import BY_CLASS, failure_mode, runbook, with_failure_mode
from gate.verdict.history_lines import History, HistoryLine
from gate.verdict.override_findings import ENTROPY_DRAWN
from gate.verdict.verdict import Answer, FailureMode, Finding, Outcome, Severity, Verdict

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/runbooks.md").read_text("utf-8")
EXPECTED = {
    "nondeterministic": FailureMode.RANDOM,
    "preprocessing": FailureMode.DATA,
    "data-brought": FailureMode.DATA,
    "data-drift": FailureMode.DATA,
    "dependency-drift": FailureMode.LIBRARY,
    "environment-drift": FailureMode.LIBRARY,
    "resume-differs": FailureMode.CHECKPOINT,
    "checkpoint-torn": FailureMode.CHECKPOINT,
    "same-code": FailureMode.FLAKY,
}
CODE_DRIFT, DIFFERS, ERROR = (CASES[name] for name in ("code-drift", "nondeterministic", "error"))


def diagnosed(verdict: Verdict, cause: CauseClass | None) -> Verdict:
    found = Diagnosis(
        first_step=3, kind=EventKind.LOSS, subject="loss", cause="it", remedy="", cause_class=cause
    )
    return verdict.model_copy(update={"diagnosis": found})


@each_row("name", CASES)
def test_a_verdict_that_the_pipeline_came_to_has_its_mode(name: str) -> None:
    verdict = CASES[name]
    assert verdict.failure_mode is EXPECTED.get(name, FailureMode.NONE)
    assert bool(verdict.runbook) is (name in EXPECTED)


def test_no_class_of_cause_is_forgotten() -> None:
    assert set(BY_CLASS) == set(CauseClass)


def test_the_page_has_the_same_table() -> None:
    shown = re.findall(r"^\| `([a-z-]+)` \| (none|F\d) \| (none|F\d) \|$", PAGE, re.MULTILINE)
    assert shown == [(cause.value, *modes) for cause, modes in BY_CLASS.items()]


def test_every_mode_has_its_runbook() -> None:
    modes = [mode for mode in FailureMode if mode is not FailureMode.NONE]
    assert re.findall(r"^## (F\d)$", PAGE, re.MULTILINE) == [mode.value for mode in modes]
    assert runbook(FailureMode.DISTRIBUTED) == "docs/runbooks.md#f5"
    assert runbook(FailureMode.NONE) == ""


def test_every_class_is_told_where_two_runs_differ() -> None:
    told = {cause: failure_mode(diagnosed(DIFFERS, cause)) for cause in CauseClass}
    assert told == {cause: modes[0] for cause, modes in BY_CLASS.items()}


def test_runs_that_agree_accuse_no_generator_and_no_operator() -> None:
    told = {failure_mode(diagnosed(CODE_DRIFT, cause)) for cause in CauseClass}
    assert not told & {FailureMode.RANDOM, FailureMode.OPERATOR, FailureMode.DISTRIBUTED}
    assert failure_mode(diagnosed(CODE_DRIFT, CauseClass.PRECISION)) is FailureMode.ARITHMETIC


def test_no_class_is_no_mode() -> None:
    assert failure_mode(diagnosed(DIFFERS, None)) is FailureMode.NONE
    assert failure_mode(DIFFERS.model_copy(update={"diagnosis": None})) is FailureMode.NONE


@pytest.mark.parametrize("stopped", ["passes", "over_budget", "missed_threshold"])
def test_a_good_result_has_none_whatever_else_is_so(stopped: str) -> None:
    for outcome, cause in product(Outcome, CauseClass):
        verdict = diagnosed(CODE_DRIFT, cause).model_copy(
            update={"outcome": outcome, stopped: True}
        )
        assert failure_mode(verdict, passed_before=True) is FailureMode.NONE


@pytest.mark.parametrize("verdict", [ERROR, diagnosed(DIFFERS, None)])
def test_a_commit_that_has_passed_before_is_flaky(verdict: Verdict) -> None:
    assert failure_mode(verdict) is FailureMode.NONE
    assert failure_mode(verdict, passed_before=True) is FailureMode.FLAKY


def test_an_earlier_pass_hides_no_proven_mode_and_makes_no_drift_a_flake() -> None:
    assert failure_mode(DIFFERS, passed_before=True) is FailureMode.RANDOM
    assert failure_mode(CODE_DRIFT, passed_before=True) is FailureMode.NONE


def test_libraries_are_blamed_only_where_the_base_commit_shows_it_and_nothing_else_moved() -> None:
    moved = CASES["environment-drift"]
    unseen = moved.answers.model_copy(update={"base_run": Answer.NOT_COMPARED})
    assert failure_mode(moved.model_copy(update={"answers": unseen})) is FailureMode.NONE
    assert moved.baseline is not None
    cpu = moved.baseline.environment[0].model_copy(update={"part": "cpu"})
    both = moved.baseline.model_copy(update={"environment": (*moved.baseline.environment, cpu)})
    assert failure_mode(moved.model_copy(update={"baseline": both})) is FailureMode.NONE


def test_a_draw_that_alone_stopped_a_pass_is_a_random_number_without_a_seed() -> None:
    drawn = Finding(code=ENTROPY_DRAWN, severity=Severity.WARNING, message="it draws")
    verdict = CASES["within-tolerance"].model_copy(update={"passes": False, "findings": (drawn,)})
    assert with_failure_mode(verdict).failure_mode is FailureMode.RANDOM


@pytest.mark.parametrize(("commit", "mode"), [(COMMIT, "F8"), (BASE, "none")])
def test_the_history_tells_that_this_commit_has_passed(commit: str, mode: str) -> None:
    line = HistoryLine(judged_at=JUDGED_AT, commit=commit, outcome=Outcome.REPRODUCED, passes=True)
    request = replace(REQUEST, history=History(lines=(line,)))
    fault = RunError("run strict-1: no space left on device", hint="Free some.")
    assert error_verdict(request, COMMIT, JUDGED_AT, fault).failure_mode.value == mode


def test_an_earlier_pass_on_another_machine_proves_no_flake() -> None:
    ran_here = (ran(), ran("strict-2", since=3, first="gradients"))
    here = ran().environment
    assert here is not None
    for environment, mode in ((canonical_sha256(here.parts)[:16], "F8"), ("0" * 16, "none")):
        line = HistoryLine(
            judged_at=JUDGED_AT,
            commit=COMMIT,
            outcome=Outcome.REPRODUCED,
            passes=True,
            environment=environment,
        )
        request = replace(REQUEST, history=History(lines=(line,)))
        verdict = judged(ran_here, request=request)
        assert (verdict.outcome, verdict.failure_mode.value) == (Outcome.NONDETERMINISTIC, mode)
