"""More strict runs than two: all are compared with the first, and the report counts them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gate_bench import FILES, Bench, gate_call
from played_training import SCRIPT, Project

from gate.errors import BaselineError, EvidenceError
from gate.pipelines.gate import record_baseline, train_all
from gate.pipelines.imported_evidence import take_over
from gate.pipelines.policy_files import read_baselines
from gate.report.assembly import ReportLinks, report_of
from gate.report.layout import Limits
from gate.training.timeline import CallTime
from gate.verdict.verdict import Answer, Outcome

# default runs are part of what these tests are about
pytestmark = pytest.mark.usefixtures("priced")

LINKS = ReportLinks()


def _play_a_fault_of(project: Project, *runs: str) -> None:
    """Let these strict runs be struck: each counts itself in a folder that all share."""
    counter = project.path.parent / "counted"
    counter.mkdir()
    struck = f"number in {tuple(map(int, runs))!r} and os.environ['REPRO_GATE_MODE'] == 'strict'"
    fault = (
        f"count = pathlib.Path({str(counter)!r}) / os.environ['REPRO_GATE_MODE']\n"
        "count.open('a').write('x')\n"
        "number = len(count.read_text())\n"
        f"losses[-1] += {struck}\n"
    )
    project.write("train.py", SCRIPT.replace("words = dict(", f"{fault}words = dict(", 1))
    project.commit()


def test_a_fault_of_a_later_run_is_found_by_more_repeats_and_by_them_alone(
    bench: Bench, project: Project
) -> None:
    _play_a_fault_of(project, "3")
    two = bench.gate().verdict
    assert two.outcome is Outcome.NO_BASELINE
    assert two.strict_runs == 2
    for count in (project.path.parent / "counted").iterdir():
        count.unlink()
    project.settings("repeats: 4\nruns: {parallel: never}")
    four = bench.gate()
    verdict = four.verdict
    assert verdict.outcome is Outcome.NONDETERMINISTIC
    assert verdict.cause == (
        "two strict runs of the same commit differ from step 3 on: loss first (1 of 3 differ from "
        "strict-1, strict-3 first)"
    )
    assert verdict.answers.repeat is Answer.OUTSIDE
    assert verdict.repeat is not None
    assert verdict.repeat.observed == "strict-3"
    assert [run.label for run in verdict.runs] == [
        "strict-1", "default-1", "default-2", "strict-2", "strict-3",
    ]  # fmt: skip
    assert four.proposed is None
    report = report_of(verdict, LINKS, Limits(deltas=9, rows=99))
    question, answer = report.overview.rows[0]
    assert question.text == "3 runs of this commit"
    assert answer.text.startswith("❌ differ: ")
    assert "(strict-1 and strict-3 of 3) differ from step 3 on" in report.brief.happened


def test_equal_repeats_say_what_share_of_rare_faults_they_miss(
    bench: Bench, project: Project
) -> None:
    project.settings("repeats: 5")
    verdict = bench.gate().verdict
    assert verdict.strict_runs == 5
    (sentence,) = (text for text in verdict.not_exercised if text.startswith("rare faults"))
    # 0.9 ** 5 + 0.1 ** 5
    assert "of those that affect one run in ten, 5 runs miss 59 %" in sentence


def test_a_call_may_ask_for_more_than_the_settings(bench: Bench) -> None:
    request = replace(bench.request(), repeats=3)
    assert gate_call(request, bench.adapters()).verdict.strict_runs == 3


def test_a_baseline_is_recorded_from_as_many_equal_runs(bench: Bench, project: Project) -> None:
    project.settings("repeats: 3")
    _play_a_fault_of(project, "3")
    with pytest.raises(BaselineError, match="the strict runs are not equal"):
        record_baseline(bench.request(), bench.adapters(), "first")


def test_a_baseline_may_ask_for_more_equal_runs_than_a_gate_call_makes(
    bench: Bench, project: Project
) -> None:
    project.settings("baseline: {record_repeats: 3}")
    (entry,) = record_baseline(bench.request(), bench.adapters(), "first").entries
    # 0.9 ** 3 + 0.1 ** 3
    assert (entry.equal_runs, entry.missed_faults) == (3, 0.73)


def test_evidence_of_fewer_runs_than_the_settings_ask_for_is_refused(
    bench: Bench, project: Project
) -> None:
    project.settings("repeats: 3")
    request = bench.request(commit="HEAD")
    adapters = bench.adapters()
    call = CallTime(adapters.clock)
    train_all(request, adapters, None, read_baselines(request, adapters), call)
    ran = bench.out / "evidence"
    other = Bench(project, bench.out.parent / "judged")
    imported = take_over(other.request(commit="HEAD"), other.adapters(), ran)
    assert len(imported.evidence.runs) == 5
    with pytest.raises(EvidenceError, match="the evidence contains the runs"):
        take_over(replace(other.request(commit="HEAD"), repeats=4), other.adapters(), ran)
    assert FILES.exists(ran)
