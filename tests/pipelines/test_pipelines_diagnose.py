"""Which comparison of kept evidence is diagnosed, in the order in which a gate call asks."""

from __future__ import annotations

import io
from collections import Counter

import pytest
from evidence_cases import LOSSES, PARTS, evidence_of, evidence_set_of
from report_outcomes import (
    CLOSED_CASES,
    NO_MOMENT,
    PREPROCESSING,
    both,
    resumed_runs,
)
from resume_cases import attempt
from rich.console import Console

from gate.commands.job import diagnosis_view
from gate.errors import EvidenceError
from gate.evidence.lock_files import LockFile
from gate.evidence.run_evidence import RunEvidence
from gate.package.packing import CallDocument
from gate.pipelines.case import ClosedCase
from gate.pipelines.diagnose import Retold, diagnose_kept, kept_diagnosis
from gate.pipelines.gate import judge
from gate.pipelines.kept_evidence import KeptEvidence
from gate.pipelines.packed_diagnosis import diagnose_again
from gate.report.brief import brief_of
from gate.training.runs import Commit, RunMode
from gate.verdict.verdict import Outcome

FAR = (2.5, 2.25, 9.0)


def run(
    label: str, *, values: tuple[float, ...] = LOSSES, parts: dict[str, str] | None = None
) -> RunEvidence:
    """A strict run of the head, or of the base where its label says so."""
    plain = evidence_of(label, values=values, parts=parts)
    commit = Commit.BASE if label.startswith("base") else Commit.HEAD
    record = plain.run.model_copy(update={"mode": RunMode.STRICT, "commit": commit})
    return plain.model_copy(update={"run": record})


def retold(*runs: RunEvidence, **changes: object) -> Retold:
    evidence = evidence_set_of(*runs).model_copy(update=changes)
    return diagnose_kept(KeptEvidence(evidence=evidence))


def test_runs_of_the_commit_are_asked_before_its_base() -> None:
    found = retold(run("strict-1"), run("strict-2", values=FAR), run("base-1", values=FAR))
    assert found.verdict is not None
    assert found.verdict.outcome is Outcome.NONDETERMINISTIC
    assert found.compared == ("strict-1 and strict-2", "base-1 and strict-1")


def test_a_base_commit_that_ran_beside_it_shows_the_drift() -> None:
    found = retold(run("strict-1", values=FAR), run("strict-2", values=FAR), run("base-1"))
    assert found.verdict is not None
    assert found.verdict.outcome is Outcome.CODE_DRIFT
    assert found.verdict.base_run is not None
    assert (found.verdict.base_run.expected, found.verdict.base_run.observed) == (
        "base-1",
        "strict-1",
    )
    assert "That is against the base commit run here" in brief_of(found.verdict).happened


def test_an_environment_that_the_change_brings_is_named_by_its_lock_files() -> None:
    here = run("strict-1", values=FAR, parts={**PARTS, "torch": "9"})
    there = run("strict-2", values=FAR, parts={**PARTS, "torch": "9"})
    locks = (LockFile(path="requirements.lock", sha256="a" * 64),)
    found = retold(here, there, run("base-1"), locks=locks)
    assert found.verdict is not None
    assert found.verdict.outcome is Outcome.DEPENDENCY_DRIFT
    happened = brief_of(found.verdict).happened
    assert "This change uses another environment (requirements.lock)" in happened


def test_equal_runs_alone_say_what_is_missing() -> None:
    found = retold(run("strict-1"), run("strict-2"))
    assert (found.verdict, found.compared) == (None, ("strict-1 and strict-2",))
    assert [sentence.partition(",")[0] for sentence in found.missing] == [
        "The baseline is not among the evidence",
        "The base commit was not run: the gate does that when the environment changed",
    ]


def test_one_run_alone_says_nothing_of_repeating() -> None:
    found = retold(run("strict-1"))
    assert found.compared == ()
    assert found.missing[0].startswith("There is only one strict run")


def test_evidence_without_a_strict_run_is_refused() -> None:
    with pytest.raises(EvidenceError, match="holds no strict run of the commit"):
        retold(run("base-1"))


@pytest.mark.parametrize("values", [LOSSES, FAR])
def test_hostile_text_of_the_evidence_is_defused_in_the_terminal(values: tuple[float, ...]) -> None:
    found = retold(
        run("strict-1"), run("strict-2", values=values), commit="\x1b]0;x\x07::error::no"
    )
    file = io.StringIO()
    Console(file=file, width=100).print(diagnosis_view(found, package=True))
    assert "\x1b" not in file.getvalue()
    assert "\x07" not in file.getvalue()
    assert "seal was not checked" in file.getvalue()


def packed(closed: ClosedCase, outcome: Outcome) -> KeptEvidence:
    """What a package has of a call, whose verdict says `outcome`."""
    evidence = closed.evidence
    call = CallDocument(
        commit=evidence.commit,
        config="repro-gate.yml",
        settings_digest=evidence.settings_digest,
        snapshot_digest=evidence.snapshot_digest,
        created_at=evidence.created_at,
        gate_version="1",
    )
    return KeptEvidence(
        evidence=evidence,
        package=True,
        baseline=closed.case.baselines.base,
        settings=closed.case.request.settings,
        call=call,
        outcome=outcome,
    )


def test_a_package_is_diagnosed_as_its_call_decided_or_says_what_the_call_decided() -> None:
    unlike = Counter[Outcome]()
    for closed in CLOSED_CASES:
        verdict = judge(closed).verdict
        found = diagnose_again(packed(closed, verdict.outcome))
        said = kept_diagnosis(found, verdict.created_at)
        if found.verdict is None:
            assert verdict.passes or verdict.outcome is Outcome.NO_BASELINE, verdict.outcome
        elif found.decided is None:
            assert said.outcome == verdict.outcome.value
            # the runs of these cases name no image
            told = verdict.model_copy(update={"brought": found.verdict.brought})
            assert said.summary == brief_of(told).happened
        else:
            unlike[verdict.outcome] += 1
            start = f"The package's own verdict is {verdict.outcome}. "
            assert (said.outcome, said.summary.startswith(start)) == (verdict.outcome.value, True)
            file = io.StringIO()
            Console(file=file, width=100).print(diagnosis_view(found, package=True))
            head, sentence, *_ = file.getvalue().splitlines()
            assert head.startswith(f"{verdict.outcome.value}, commit ")
            assert sentence.startswith(start)
    assert len({judge(closed).verdict.outcome for closed in CLOSED_CASES}) == len(Outcome)
    assert set(unlike) == {Outcome.BASELINE_CHANGE, Outcome.ENVIRONMENT_DRIFT}


def folder(*further: RunEvidence, **changes: object) -> Retold:
    """The diagnosis of a folder of evidence, which has no settings; all strict runs are equal."""
    evidence = evidence_set_of(*both(), *further).model_copy(update=changes)
    return diagnose_kept(KeptEvidence(evidence=evidence))


def test_a_folder_names_the_state_that_a_resumed_run_lacks() -> None:
    found = folder(*resumed_runs(NO_MOMENT), resume=attempt(12))
    assert found.verdict is not None
    assert found.verdict.diagnosis is not None
    document = kept_diagnosis(found, "")
    assert (document.outcome, document.observed) == ("resume-differs", "resumed-1")
    assert "the run that was resumed after step 12 differs" in document.summary.lower()
    assert "first moment (exp_avg)" in found.verdict.diagnosis.cause
    assert folder(*resumed_runs(), resume=attempt(12)).verdict is None


def test_a_folder_says_that_the_preprocessing_wrote_other_data() -> None:
    found = folder(unrepeated=PREPROCESSING.unrepeated)
    assert found.verdict is not None
    assert found.verdict.outcome is Outcome.NONDETERMINISTIC
    assert "python prepare.py" in brief_of(found.verdict).happened
