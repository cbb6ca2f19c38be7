"""The life of an entry: proposed, far from its peers, confirmed, replaced, in quarantine."""

from __future__ import annotations

from dataclasses import replace

from evidence_cases import evidence_set_of
from report_cases import BASE, COMMIT, CPU_PARTS
from report_outcomes import (
    DRIFTED,
    EXACT,
    ISOLATED,
    REQUEST,
    base_runs,
    both,
    entry,
    ran,
    settings,
)

from gate.baseline.entry import Baseline, BaselineEntry, Baselines
from gate.baseline.record import with_entry
from gate.evidence.columns import Points
from gate.evidence.run_evidence import EvidenceSet, RunEvidence
from gate.pipelines.case import Gated, case_of
from gate.pipelines.entries import compared_entry
from gate.pipelines.gate import judge
from gate.report.brief import brief_of
from gate.report.wording import headline
from gate.settings.gate_settings import GateSettings
from gate.verdict.verdict import Outcome

FIRST, SECOND = "2026-08-01T09:30:00+00:00", "2026-08-02T09:30:00+00:00"
TODAY = "2026-08-22T12:00:00+00:00"
ELSEWHERE = {**CPU_PARTS, "cpu": "another", "cpu_capability": "AVX512"}
# another program's numbers: 40 % off from the first step on
POISONED = both(since=1, by=0.4)


def _gated(
    runs: tuple[RunEvidence, ...],
    trusted: Baseline | None,
    *,
    brought: Baseline | None = None,
    under: GateSettings = EXACT,
    now: str = TODAY,
) -> Gated:
    evidence = EvidenceSet.model_validate(
        evidence_set_of(*runs).model_dump()
        | {"commit": COMMIT, "base_commit": BASE, "created_at": now}
    )
    baselines = Baselines(base=trusted, head=brought)
    request = replace(REQUEST, settings=under)
    return judge(case_of(request, baselines, evidence, ISOLATED))


def _baseline(*entries: BaselineEntry) -> Baseline:
    made: Baseline | None = None
    for one in entries:
        made = with_entry(made, one)
    assert made is not None
    return made


PEER = entry(ran(parts=ELSEWHERE), recorded_at=FIRST)


def _recorded(
    runs: tuple[RunEvidence, ...], baseline: Baseline | None, at: str = FIRST
) -> BaselineEntry:
    return compared_entry(entry(runs[0], recorded_at=at), baseline, REQUEST.settings)


def test_an_entry_near_its_peer_judges_at_once() -> None:
    near = _recorded(both(), _baseline(PEER))
    assert (near.far, near.provisional, near.recordings) == (None, False, 1)
    gated = _gated(both(), _baseline(PEER, near))
    assert gated.verdict.outcome is Outcome.REPRODUCED


def test_a_poisoned_entry_judges_nothing_until_another_call_gives_its_bits() -> None:
    poisoned = _recorded(POISONED, _baseline(PEER))
    assert poisoned.provisional
    gated = _gated(POISONED, _baseline(PEER, poisoned))
    verdict = gated.verdict
    # equal bits, and no pass all the same
    assert (verdict.outcome, verdict.passes) == (Outcome.NO_BASELINE, False)
    assert verdict.cause.startswith("the entry of this environment is far from its peers")
    assert verdict.cause.endswith(
        "record it again to confirm; this run gives the same bits: accept it to confirm"
    )
    assert headline(verdict) == "failed: the baseline's entry is far from its peers"
    assert gated.proposed is not None
    assert (gated.proposed.recordings, gated.proposed.provisional) == (2, False)
    confirmed = _gated(POISONED, _baseline(PEER, gated.proposed))
    assert confirmed.verdict.outcome is Outcome.REPRODUCED


def test_the_right_program_does_not_confirm_a_poisoned_entry() -> None:
    poisoned = _recorded(POISONED, _baseline(PEER))
    gated = _gated(both(), _baseline(PEER, poisoned))
    assert gated.verdict.outcome is Outcome.NO_BASELINE
    assert gated.verdict.cause.endswith("this run gives a different result than it does")
    assert "This run does not reproduce it exactly." in brief_of(gated.verdict).happened
    # its own result is near the peer: accepted, it judges at once
    assert gated.proposed is not None
    assert (gated.proposed.far, gated.proposed.recordings) == (None, 1)


def test_the_same_call_accepted_twice_is_one_recording() -> None:
    poisoned = _recorded(POISONED, _baseline(PEER))
    again = _recorded(POISONED, _baseline(PEER, poisoned))
    assert (again.recordings, again.far) == (1, poisoned.far)
    assert _recorded(POISONED, _baseline(PEER, poisoned), SECOND).recordings == 2


def test_what_an_entry_claims_of_itself_is_not_taken() -> None:
    claims = entry(POISONED[0], recorded_at=FIRST).model_copy(update={"recordings": 9})
    assert compared_entry(claims, _baseline(PEER), REQUEST.settings).provisional


def test_a_pull_request_that_brings_a_far_entry_is_told_and_does_not_pass() -> None:
    poisoned = _recorded(POISONED, _baseline(PEER))
    trusted = _baseline(PEER)
    gated = _gated(POISONED, trusted, brought=_baseline(PEER, poisoned))
    assert (gated.verdict.outcome, gated.verdict.passes) == (Outcome.NO_BASELINE, False)
    assert gated.verdict.cause.startswith("the pull request's entry of this environment is far")
    assert gated.proposed is not None
    assert gated.proposed.recordings == 2
    brought = _baseline(PEER, gated.proposed)
    assert _gated(POISONED, trusted, brought=brought).verdict.outcome is Outcome.BASELINE_CHANGE


def test_a_provisional_entry_of_another_machine_is_no_peer_and_judges_nothing() -> None:
    poisoned = _recorded(
        tuple(run.model_copy() for run in both(since=1, by=0.4, parts=ELSEWHERE)),
        _baseline(entry(ran(parts={**CPU_PARTS, "cpu": "third"}))),
    )
    assert poisoned.provisional
    assert _recorded(both(), _baseline(poisoned)).far is None
    assert _gated(both(), _baseline(poisoned)).verdict.cause.endswith(
        "there is no baseline to compare them with"
    )


def test_a_result_moved_on_purpose_is_not_held_against_its_peers() -> None:
    known = _baseline(PEER, _recorded(both(), _baseline(PEER)))
    changed = _recorded(POISONED, known, SECOND)
    assert (changed.far, changed.recordings) == (None, 1)
    assert changed.moved is not None
    assert changed.moved.metric == "loss"


def test_a_proposal_says_how_far_it_moved_and_what_the_gate_said() -> None:
    gated = _gated(DRIFTED, _baseline(entry(ran(), recorded_at=FIRST)))
    assert gated.verdict.outcome is Outcome.CODE_DRIFT
    assert gated.proposed is not None
    moved = gated.proposed.moved
    assert moved is not None
    assert (moved.outcome, moved.commit, moved.weights_equal) == ("code-drift", BASE, False)
    assert (gated.proposed.equal_runs, round(gated.proposed.missed_faults, 2)) == (2, 0.82)
    assert gated.proposed.run_url == REQUEST.run_url


def test_a_new_baseline_is_told_with_how_far_it_moves_the_result() -> None:
    old = _baseline(entry(ran(), recorded_at=FIRST))
    new = _baseline(entry(DRIFTED[0], recorded_at=SECOND))
    tolerant = settings(compare={"tolerances": ({"metric": "*", "relative": 0.001},)})
    verdict = _gated(DRIFTED, old, brought=new, under=tolerant).verdict
    assert verdict.outcome is Outcome.BASELINE_CHANGE
    assert "times the tolerance); weights differ" in brief_of(verdict).happened


def test_goldens_rounded_to_five_decimals_are_reproduced_by_nothing() -> None:
    run = ran()
    points = (
        Points((step, round(value, 5)) for step, value in series.points.pairs())
        for series in run.metrics
    )
    rounded = run.model_copy(
        update={
            "metrics": tuple(
                series.model_copy(update={"points": made})
                for series, made in zip(run.metrics, points, strict=True)
            )
        }
    )
    verdict = _gated(both(), _baseline(entry(rounded))).verdict
    assert (verdict.outcome, verdict.passes) == (Outcome.CODE_DRIFT, False)
    brought = _baseline(entry(rounded))
    verdict = _gated(both(), _baseline(entry(run)), brought=brought).verdict
    assert verdict.outcome is Outcome.REPRODUCED


QUARANTINED = settings(
    baseline={
        "quarantine": ({"reason": "a flaky node", "since": "2026-08-10", "until": "2026-08-30"},)
    }
)


def test_an_entry_in_quarantine_leaves_the_judgement_to_the_base_commit() -> None:
    wrong = _baseline(entry(POISONED[0], recorded_at=FIRST))
    verdict = _gated((*both(), *base_runs()), wrong, under=QUARANTINED).verdict
    assert (verdict.outcome, verdict.passes) == (Outcome.WITHIN_TOLERANCE, True)
    assert headline(verdict) == (
        "passed: same result as the base commit (baseline in quarantine until 2026-08-30)"
    )
    assert brief_of(verdict).happened.startswith(
        "In quarantine until 2026-08-30: the baseline (a flaky node)."
    )
    assert "quarantine" in {finding.code for finding in verdict.findings}


def test_without_the_base_commit_it_fails_and_says_so() -> None:
    wrong = _baseline(entry(POISONED[0], recorded_at=FIRST))
    verdict = _gated(both(), wrong, under=QUARANTINED).verdict
    assert (verdict.outcome, verdict.passes) == (Outcome.CODE_DRIFT, False)
    assert "It does not apply here" in brief_of(verdict).happened


def test_the_day_after_its_end_it_excuses_nothing() -> None:
    wrong = _baseline(entry(POISONED[0], recorded_at=FIRST))
    runs = (*both(), *base_runs())
    verdict = _gated(runs, wrong, under=QUARANTINED, now="2026-08-31T00:00:00+00:00").verdict
    assert (verdict.outcome, verdict.passes) == (Outcome.CODE_DRIFT, False)
    assert "quarantine-expired" in {finding.code for finding in verdict.findings}


def test_a_quarantine_excuses_no_setting_of_another_training() -> None:
    other = settings(
        train={"command": ("python", "train.py"), "max_steps": 24, "seed": 7},
        baseline=QUARANTINED.baseline.model_dump(),
    )
    wrong = _baseline(entry(POISONED[0], recorded_at=FIRST))
    verdict = _gated((*both(), *base_runs()), wrong, under=other).verdict
    assert (verdict.outcome, verdict.passes) == (Outcome.NOT_COMPARABLE, False)
