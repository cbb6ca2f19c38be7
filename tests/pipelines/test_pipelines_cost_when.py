"""`cost.when`: a call that is not priced trains twice, and tells the price of the baseline."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gate_bench import FILES, Bench, gate_call
from played_training import Project

from gate.baseline.entry import PROPOSED_BASELINE
from gate.baseline.folder import write_entries
from gate.errors import EvidenceError
from gate.pipelines.case import Gated
from gate.pipelines.gate import judging, run_only
from gate.pipelines.proposals import accepted, last_proposal
from gate.report.assembly import ReportLinks
from gate.report.comment import comment_text
from gate.text.documents import write_document
from gate.verdict.verdict import Outcome, Verdict

LOSSES = [str(2.5 - step / 64) for step in range(8)]
NEVER = "cost: {warmup_steps: 1, min_steps: 4, budget_percent: 5, when: never}\n"
NIGHTLY = NEVER.replace("never", "nightly")


def _play(project: Project, settings: str) -> None:
    project.play(losses=LOSSES, knob_seconds={"deterministic_algorithms": 0.02})
    project.settings(settings)


def _gate(priced: Bench, *, nightly: bool = True) -> Gated:
    request = replace(priced.request(), nightly=nightly)
    found = gate_call(request, priced.adapters())
    if found.proposed is not None:
        FILES.write_bytes(priced.out / PROPOSED_BASELINE, write_document(found.proposed))
    return found


def _accept(priced: Bench, project: Project) -> None:
    """Take the last call's proposal over, as `baseline accept` does."""
    request, adapters = priced.request(), priced.adapters()
    baseline = accepted(request, adapters, last_proposal(request, adapters), "first", "")
    write_entries(FILES, project.path / request.settings.baseline.path, None, baseline)
    project.commit()


def _labels(verdict: Verdict) -> list[str]:
    return [run.label for run in verdict.runs]


def _notices(verdict: Verdict) -> dict[str, str]:
    return {finding.code: finding.message for finding in verdict.findings}


def test_a_call_that_is_not_priced_makes_strict_runs_alone(priced: Bench, project: Project) -> None:
    _play(project, NEVER)
    priced.record()
    verdict = priced.gate().verdict
    assert _labels(verdict) == ["strict-1", "strict-2"]
    assert (verdict.outcome, verdict.passes, verdict.cost) == (Outcome.REPRODUCED, True, None)
    assert _notices(verdict)["budget-not-applied"] == (
        "cost.budget_percent (5 %) was not applied: cost.when is never, so this call measured "
        "no cost"
    )
    (sentence,) = (text for text in verdict.not_exercised if text.startswith("rare faults"))
    assert "two runs miss 82 %" in sentence
    assert "Cost of determinism" not in comment_text(verdict, ReportLinks())


def test_the_price_of_the_baseline_is_told_with_its_date(priced: Bench, project: Project) -> None:
    _play(project, NIGHTLY)
    nightly = _gate(priced)
    assert set(_labels(nightly.verdict)) == {"strict-1", "strict-2", "default-1", "default-2"}
    assert nightly.proposed is not None
    price = nightly.proposed.price
    assert price is not None
    _accept(priced, project)
    by_day = _gate(priced, nightly=False)
    verdict = by_day.verdict
    # too much for the budget, which an old price does not break
    assert (price.low > 1.05, verdict.passes) == (True, True)
    assert verdict.baseline_facts is not None
    assert verdict.baseline_facts.price == price
    assert f"(measured {price.measured_at[:10]}, with the baseline)" in comment_text(
        verdict, ReportLinks()
    )
    # an entry that such a call proposes keeps the price, with its own date
    assert by_day.proposed is not None
    assert by_day.proposed.price == price
    assert not _gate(priced).verdict.passes


def test_the_judging_job_takes_the_runs_that_its_call_would_make(
    priced: Bench, project: Project
) -> None:
    _play(project, NIGHTLY)
    commit = priced.record()
    by_day = replace(priced.request(commit=commit), nightly=False)
    folder = run_only(by_day, priced.adapters())
    judge = judging(folder)
    priced.out = priced.out.parent / "judged"
    by_day = replace(priced.request(commit=commit), nightly=False, imported_runs=True)
    assert judge(by_day, priced.adapters(), None).verdict.passes
    with pytest.raises(EvidenceError, match="the evidence contains the runs 'strict-1, strict-2'"):
        judge(replace(by_day, nightly=True), priced.adapters(), None)
