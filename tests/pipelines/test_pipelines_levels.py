"""Thresholds on final metrics through the whole gate, with a played training."""

from __future__ import annotations

from gate_bench import Bench
from played_training import Project

from gate.comparison.differences import EventKind
from gate.pipelines.case import Gated
from gate.report.assembly import ReportLinks, report_of
from gate.report.layout import Limits
from gate.settings.levels import ReachedLevel
from gate.verdict.verdict import FailureMode, Outcome

FUNCTIONAL = "policy: {level: functional, thresholds: {loss: {max: 2.2}}}"


def _told(gated: Gated) -> tuple[str, str, dict[str, str]]:
    report = report_of(gated.verdict, ReportLinks(), Limits(deltas=9, rows=99))
    rows = {row[0].text: row[1].text for row in report.overview.rows}
    return report.headline, report.brief.happened, rows


def test_another_result_that_meets_every_threshold_passes_where_the_policy_asks_for_no_more(
    bench: Bench, project: Project
) -> None:
    project.settings(FUNCTIONAL)
    bench.record()
    project.play(losses=["2.5", "2.25", "2.0"])
    gated = bench.gate()
    verdict = gated.verdict
    assert (verdict.outcome, verdict.passes) == (Outcome.CODE_DRIFT, True)
    assert verdict.level is ReachedLevel.FUNCTIONAL
    headline, happened, rows = _told(gated)
    assert headline == "passed: a different result, which meets every threshold"
    assert happened.endswith("It passes at the functional level: loss is 2.0 (at most 2.2).")
    assert rows["Thresholds"] == "✅ 1 met"
    assert [step.text for step in verdict.next_steps] == [
        "The result differs from the baseline: merge only if that is intended."
    ]
    # where it begins is information: no cause is blamed, and there is nothing to undo
    assert verdict.diagnosis is not None
    assert (verdict.diagnosis.kind, verdict.diagnosis.first_step) == (EventKind.LOSS, 3)
    assert verdict.diagnosis.trace is None
    assert (verdict.change, verdict.failure_mode) == (None, FailureMode.NONE)
    assert "Cause:" not in happened
    (section,) = (
        one
        for one in report_of(verdict, ReportLinks(), Limits(deltas=9, rows=99)).sections
        if one.anchor == "diagnosis"
    )
    assert section.title == "Where this result first differs (informational)"
    assert "Remedy" not in {row[0].text for row in section.table.rows}


def test_another_result_that_misses_a_threshold_fails_and_says_which(
    bench: Bench, project: Project
) -> None:
    project.settings(FUNCTIONAL)
    bench.record()
    project.play(losses=["2.5", "2.25", "2.5"])
    gated = bench.gate()
    assert (gated.verdict.outcome, gated.verdict.passes) == (Outcome.CODE_DRIFT, False)
    _, happened, _ = _told(gated)
    assert "A threshold is missed: loss is 2.5 (at most 2.2)." in happened


def test_a_missed_threshold_fails_a_result_that_equals_the_baseline(
    bench: Bench, project: Project
) -> None:
    bench.record()
    project.settings("policy: {thresholds: {loss: {max: 2.0}, file.accuracy: {min: 0.9}}}")
    gated = bench.gate()
    verdict = gated.verdict
    assert (verdict.outcome, verdict.passes) == (Outcome.REPRODUCED, False)
    assert verdict.level is ReachedLevel.BITWISE
    headline, happened, rows = _told(gated)
    assert headline == "failed: a threshold is missed"
    assert happened.endswith("But a threshold is missed: file.accuracy is missing (at least 0.9).")
    assert rows["Thresholds"] == (
        "❌ missed: file.accuracy is missing (at least 0.9), loss is 2.125 (at most 2)"
    )
    assert verdict.next_steps[-1].text.startswith("If intended: change policy.thresholds")
