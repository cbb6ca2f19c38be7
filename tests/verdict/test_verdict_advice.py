"""What to do next fits what happened: no advice that cannot help."""

from __future__ import annotations

from dataclasses import replace

import pytest
from evidence_cases import evidence_of, settings_of

from gate.comparison.compare import compare_results
from gate.comparison.differences import (
    EventKind,
    NotFinite,
    OptimizerSettingChange,
    OtherSetting,
)
from gate.diagnosis.diagnosis import Diagnosis
from gate.diagnosis.first_divergence import diagnose_repeat
from gate.diagnosis.suspects import KnownLines
from gate.errors import (
    GateError,
    InternalError,
    MissingOutputError,
    RunError,
    RunTimeoutError,
)
from gate.evidence.observations import Source, SourceKind
from gate.training.environment import PackageMove
from gate.verdict.next_step import (
    OTHER_THRESHOLD,
    ReaderPlace,
    after_fault,
    next_steps,
    where_not_finite,
    where_settings_differ,
)
from gate.verdict.verdict import NotFiniteResult, Outcome

HERE = ReaderPlace(
    config="repro-gate.yml", out="out", baseline="b", base_commit="", on_runner=False
)
RAISED = RunError("strict-1 exited with 1", hint="Fix train.py.", file="train.py", line=3)
LATE = RunTimeoutError("strict-1 timed out", hint="Raise train.timeout_seconds.")
NOT_STARTED = RunError("strict-1 could not be started", hint="Install the engine.")


@pytest.mark.parametrize(
    ("renamed", "text"),
    [(1, "rename the tensor back."), (2, "rename the 2 tensors back.")],
)
def test_where_only_names_differ_the_next_step_is_about_the_names(renamed: int, text: str) -> None:
    back, accept, *_ = next_steps(
        Outcome.NOT_COMPARABLE, replace(HERE, renamed=renamed), passes=False
    )
    assert back.text == f"If unintended: {text}"
    assert accept.accepts
    assert "new baseline" in accept.text
    assert "--reason 'new names of tensors'" in accept.command


@pytest.mark.parametrize(
    ("fault", "doctor"),
    [
        (RAISED, False),
        (LATE, False),
        (InternalError(ValueError("x")), False),
        (MissingOutputError("no metrics file", hint="Check train.metrics.file."), False),
        (NOT_STARTED, True),
    ],
)
def test_the_doctor_is_named_where_the_machine_may_lack_something(
    fault: GateError, *, doctor: bool
) -> None:
    steps = after_fault(fault, HERE)
    assert steps[0].text == fault.hint
    assert any("doctor" in step.command for step in steps) is doctor


def test_another_command_is_undone_by_the_words_that_differ() -> None:
    setting = OtherSetting(
        key="train.command", before='["a", "--n", "8"]', after='["a", "--n", "9"]'
    )
    undo, accept = where_settings_differ(HERE, (setting,), proposed=True)
    assert undo.text == "If unintended: undo the change to train.command (--n 8 → 9)."
    assert accept.accepts
    assert where_settings_differ(HERE, (setting,), proposed=False) == (undo,)


@pytest.mark.parametrize(
    ("revert_to", "told"),
    [
        ("0.001", "set lr of optimizer 0 back to 0.001."),
        ("1e-08", "set lr of optimizer 0 back to 1e-08."),
        ("0.00019801980198019803", "look at the schedule."),
    ],
)
def test_only_a_number_that_somebody_typed_is_to_be_set_back(revert_to: str, told: str) -> None:
    change = OptimizerSettingChange(
        optimizer=0, name="lr", before=revert_to, after="2", revert_to=revert_to
    )
    diagnosis = Diagnosis(
        first_step=1,
        kind=EventKind.PARAMETERS,
        subject="parameters",
        cause="the update changed",
        remedy="Look at the schedule.",
        optimizer_settings=(change,),
    )
    step = next_steps(Outcome.CODE_DRIFT, HERE, passes=False, diagnosis=diagnosis)[0]
    assert step.text == f"If unintended: {told}"


def test_a_time_that_is_saved_is_left_out_and_not_counted() -> None:
    one, other = evidence_of(), evidence_of(weights=b"others")
    clock = Source(
        step=1,
        kind=SourceKind.CLOCK,
        call="time.time",
        before="",
        after="",
        file="train.py",
        line=9,
        stack=(),
        worker=False,
        thread=False,
        rank=0,
    )
    compared = compare_results(one, other, settings_of().compare, ("strict-1", "strict-2"))
    found = diagnose_repeat(compared, KnownLines(sources=(clock,)), one_cpu_thread=True)
    assert found is not None
    assert found.remedy.startswith("Save no time: leave out what train.py:9 takes from time.time()")


@pytest.mark.parametrize(
    ("before", "pin"), [("1.0", "auglib==1.0"), ("", ""), ("1.0 (folder)", "")]
)
def test_a_package_is_pinned_by_a_version_that_pip_takes(before: str, pin: str) -> None:
    assert PackageMove(name="auglib", before=before, after="1.1").pin == pin


def test_a_few_packages_are_pinned_by_name_and_many_are_not() -> None:
    pinned = replace(HERE, pins=("auglib==1.0",))
    many = replace(HERE, pins=("a==1", "b==1", "c==1", "d==1"))
    texts = [
        " ".join(step.text for step in next_steps(Outcome.ENVIRONMENT_DRIFT, place, passes=False))
        for place in (pinned, many)
    ]
    assert "If unintended: pin auglib==1.0, or restore the baseline's packages" in texts[0]
    assert "pin" not in texts[1]


def test_where_a_threshold_is_missed_no_baseline_is_offered() -> None:
    steps = next_steps(Outcome.CODE_DRIFT, replace(HERE, missed=True), passes=False)
    assert not any(step.accepts for step in steps)
    assert steps[-1].text == OTHER_THRESHOLD


RECORDED = replace(HERE, recorded_from="ea2370b0" * 5)
NAMES_THE_BASE = "repro-gate gate --base ea2370b0ea23"


@pytest.mark.parametrize("outcome", [Outcome.CODE_DRIFT, Outcome.NOT_COMPARABLE])
def test_a_drift_without_a_base_says_which_commit_shows_the_changed_lines(outcome: Outcome) -> None:
    asked = next_steps(outcome, RECORDED, passes=False)
    assert NAMES_THE_BASE in [step.command for step in asked]
    # where they are shown already, cannot be, or are none, it would be a step for nothing
    elsewhere = (
        replace(RECORDED, base_commit="1" * 40),
        replace(RECORDED, on_runner=True),
        HERE,
    )
    for place in elsewhere:
        steps = next_steps(outcome, place, passes=False)
        assert not any("--base" in step.command for step in steps)


def test_a_number_that_is_not_finite_is_traced_with_a_base() -> None:
    result = NotFiniteResult(
        number=NotFinite(run="strict-1", name="loss", step=1, value="inf", infinite=True)
    )
    steps = where_not_finite(RECORDED, result, own_settings=True)
    assert [step.command for step in steps] == ["", NAMES_THE_BASE]
