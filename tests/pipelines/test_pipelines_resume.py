"""What the pipeline makes of a resume: outcome, finding, fault, and what a call that stops says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from each_row import each_row
from evidence_cases import evidence_set_of
from report_outcomes import (
    AT_STEP,
    CHECKPOINT_TORN,
    ISOLATED,
    KILLED_REQUEST,
    NO_MOMENT,
    RESUME_DIFFERS,
    RESUMED_REQUEST,
    RESUMES,
    TORN,
    both,
    killed,
    ran,
    resumed_runs,
)
from resume_cases import attempt

from gate.baseline.entry import Baselines
from gate.diagnosis.diagnosis import CauseClass, CodePlace, ResumeState
from gate.errors import ExitCode
from gate.evidence.observations import KilledSave, LeftBy, ResumeAttempt, ResumeFault
from gate.evidence.run_evidence import RunEvidence
from gate.pipelines.case import case_of
from gate.pipelines.gate import judge
from gate.settings.gate_settings import GateSettings
from gate.settings.variations import KillPoint
from gate.verdict.request import GateRequest
from gate.verdict.verdict import Outcome, RunPurpose, Verdict, WhyNotRun

FAULT = ResumeFault(message="the checkpoint never appears", hint="Name the file.")


def _judged(
    *further: RunEvidence,
    carried: ResumeAttempt | None = None,
    request: GateRequest = RESUMED_REQUEST,
) -> Verdict:
    first, second = both()
    evidence = evidence_set_of(first, second, *further).model_copy(update={"resume": carried})
    baselines = Baselines(base=None, head=None, same_code=frozenset())
    return judge(case_of(request, baselines, evidence, ISOLATED)).verdict


def _with_policy(policy: str) -> GateRequest:
    told = RESUMED_REQUEST.settings.model_dump(exclude_unset=True)
    settings = GateSettings.model_validate(told | {"policy": {"resume": policy}})
    return replace(RESUMED_REQUEST, settings=settings)


def test_a_resume_that_differs_fails_with_its_cause_and_class() -> None:
    verdict = RESUME_DIFFERS
    assert (verdict.outcome, verdict.exit_code) == (Outcome.RESUME_DIFFERS, ExitCode.FAIL)
    assert verdict.diagnosis is not None
    assert verdict.diagnosis.cause_class is CauseClass.RESUME
    assert verdict.resume is not None
    assert verdict.resume.state is ResumeState.DIFFERS
    assert verdict.next_steps[0].text.startswith("Save `optimizer.state_dict()`")


def test_an_exact_resume_passes_and_says_from_which_step() -> None:
    assert RESUMES.outcome is Outcome.REPRODUCED
    assert RESUMES.passes
    assert RESUMES.resume is not None
    assert (RESUMES.resume.state, RESUMES.resume.step) == (ResumeState.EXACT, AT_STEP)


def test_a_policy_that_warns_makes_a_resume_that_differs_a_finding() -> None:
    verdict = _judged(
        *resumed_runs(NO_MOMENT), carried=attempt(AT_STEP), request=_with_policy(policy="warn")
    )
    assert verdict.outcome is Outcome.NO_BASELINE
    (found,) = (one for one in verdict.findings if one.code == "resume-differs")
    assert found.message.startswith(
        "The run that was resumed after step 12 differs from the uninterrupted one from step 13 "
        "on: the optimizer starts without its state"
    )


@pytest.mark.parametrize("policy", ["fail", "warn"])
def test_what_could_not_be_checked_is_an_error_or_a_finding_and_never_silent(policy: str) -> None:
    carried = attempt(AT_STEP).model_copy(update={"fault": FAULT})
    before, _ = resumed_runs()
    verdict = _judged(before, carried=carried, request=_with_policy(policy))
    if policy == "fail":
        assert verdict.outcome is Outcome.ERROR
        assert verdict.cause == "the resume could not be checked: the checkpoint never appears"
        assert [step.text for step in verdict.next_steps] == ["Name the file."]
    else:
        assert "resume-not-checked" in {one.code for one in verdict.findings}


def test_a_job_that_made_no_resume_where_the_settings_ask_for_one_is_an_error() -> None:
    verdict = _judged()
    assert verdict.outcome is Outcome.ERROR
    assert "the job that ran made no interrupted and no resumed run" in verdict.cause


def test_an_interrupted_run_with_other_first_steps_is_no_resume() -> None:
    before = ran("interrupted-1", steps=AT_STEP, since=4)
    verdict = _judged(before, carried=attempt(AT_STEP))
    assert verdict.outcome is Outcome.NONDETERMINISTIC
    assert verdict.cause == (
        "the interrupted run differs from the strict runs at step 4, before it was interrupted"
    )


def _with_kills(*kills: KilledSave, policy: str = "fail") -> Verdict:
    told = KILLED_REQUEST.settings.model_dump(exclude_unset=True)
    changed = GateSettings.model_validate(told | {"policy": {"resume": policy}})
    return killed(*kills, request=replace(KILLED_REQUEST, settings=changed))


def test_a_torn_checkpoint_fails_as_a_resume_does_with_the_line_that_saves() -> None:
    verdict = CHECKPOINT_TORN
    assert (verdict.outcome, verdict.exit_code) == (Outcome.RESUME_DIFFERS, ExitCode.FAIL)
    assert verdict.cause == "a run that is killed inside the save leaves no complete checkpoint"
    assert verdict.diagnosis is not None
    assert verdict.diagnosis.cause_class is CauseClass.RESUME
    (finding,) = (one for one in verdict.findings if one.code == "checkpoint-torn")
    assert finding.message == (
        "train.py:61 writes checkpoints/last.pt in place, and a kill inside torch.save leaves "
        "checkpoints/last.pt torn (killed after byte 26,609 of 53,219: checkpoints/last.pt: zip "
        "archive without an end record: it is truncated or has a comment)"
    )
    assert finding.code_place == CodePlace(file="train.py", line=61)
    assert verdict.next_steps[0].text == finding.remedy
    assert "os.fsync" in finding.remedy


def test_under_a_policy_that_warns_a_torn_checkpoint_stays_a_finding() -> None:
    verdict = _with_kills(TORN, policy="warn")
    assert verdict.outcome is Outcome.REPRODUCED
    assert [one.code for one in verdict.findings if "torn" in one.code] == ["checkpoint-torn"]


@each_row("left", LeftBy)
def test_nothing_fails_but_what_is_torn_or_lost_and_nothing_unsaid_is_silent(left: LeftBy) -> None:
    kill = TORN.model_copy(update={"left": left, "why": "it runs in a thread"})
    verdict = _with_kills(*(kill.model_copy(update={"point": one}) for one in KillPoint))
    codes = {one.code for one in verdict.findings} & {"checkpoint-torn", "save-not-interrupted"}
    assert (verdict.outcome is Outcome.RESUME_DIFFERS) == kill.is_bad
    if kill.is_bad:
        assert codes == {"checkpoint-torn"}
    else:
        assert codes == (set() if kill.is_good else {"save-not-interrupted"})
    assert verdict.resume is not None
    assert verdict.resume.survives_kills == kill.is_good


def test_a_job_that_killed_no_run_where_the_settings_ask_for_it_is_an_error() -> None:
    verdict = _with_kills()
    assert verdict.outcome is Outcome.ERROR
    assert "the job that ran killed no run inside the save" in verdict.cause


def test_a_call_that_is_not_nightly_says_what_it_left_out() -> None:
    told = RESUMED_REQUEST.settings.model_dump(exclude_unset=True)
    told["resume"] |= {"when": "nightly"}
    settings = GateSettings.model_validate(told)
    verdict = _judged(request=replace(RESUMED_REQUEST, settings=settings, nightly=False))
    assert verdict.resume is None
    (left_out,) = (one for one in verdict.not_run if one.part is RunPurpose.RESUME)
    assert left_out.why is WhyNotRun.NOT_NIGHTLY
