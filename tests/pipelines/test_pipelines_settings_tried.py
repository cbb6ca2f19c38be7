"""After a difference between runs of one commit, settings are moved one at a time."""

from __future__ import annotations

import pytest
from gate_bench import Bench
from played_training import Project

from gate.diagnosis.diagnosis import CauseClass
from gate.evidence.trace import TriedSettings
from gate.pipelines.imported_evidence import take_over
from gate.report.brief import brief_of
from gate.verdict.verdict import Outcome, Verdict

FOUR_THREADS = "determinism: {threads: 4}\n"
ONE_THREAD = [["OMP_NUM_THREADS", "1"]]
FILLS = [["REPRO_GATE_TRIAL", "fill:85"], ["REPRO_GATE_TRIAL", "fill:170"]]
MEMORY = ("determinism.fill_uninitialized_memory: true", "a fill of the C heap")


def tried(verdict: Verdict) -> TriedSettings:
    assert verdict.outcome is Outcome.NONDETERMINISTIC
    assert verdict.diagnosis is not None
    assert verdict.diagnosis.tried is not None
    return verdict.diagnosis.tried


def test_a_script_that_repeats_under_one_thread_alone_is_told(
    bench: Bench, project: Project
) -> None:
    project.settings(FOUR_THREADS)
    project.play(random=True, steady=ONE_THREAD)
    verdict = bench.gate().verdict
    (one,) = tried(verdict).tried
    assert (one.written, one.runs, one.agree) == ("determinism.threads: 1", 4, True)
    said = brief_of(verdict).happened
    assert "With one thread (determinism.threads: 1) the runs agree (4 runs of 4)" in said
    assert said.endswith("The script is reproducible only with one thread.")
    assert verdict.diagnosis is not None
    assert verdict.diagnosis.cause_class is CauseClass.THREAD_RACE


def test_a_result_that_follows_the_fill_of_memory_reads_it_unwritten(
    bench: Bench, project: Project
) -> None:
    project.play(random=True, steady=FILLS)
    verdict = bench.gate().verdict
    torchs, heap = tried(verdict).tried
    assert (torchs.agree, heap.agree, heap.follows) == (False, True, True)
    assert verdict.diagnosis is not None
    assert verdict.diagnosis.cause_class is CauseClass.UNINITIALISED_MEMORY
    assert "memory is read before it is written" in brief_of(verdict).happened


@pytest.mark.usefixtures("priced")
def test_where_no_setting_helps_that_is_said(bench: Bench, project: Project) -> None:
    project.play(random=True)
    gated = bench.gate()
    verdict = gated.verdict
    assert [(one.written, one.agree) for one in tried(verdict).tried] == [
        (written, False) for written in MEMORY
    ]
    said = "None of the 2 settings tried makes the runs agree."
    assert brief_of(verdict).happened.endswith(said)
    # its runs are no part of the evidence; the answer is, for a job that judges elsewhere
    assert {run.run.label.partition("-")[0] for run in gated.evidence.runs} == {"strict", "default"}
    assert not list((bench.out / "evidence").glob("tried*"))
    other = Bench(project, bench.out.parent / "judged")
    taken = take_over(other.request(), other.adapters(), bench.out / "evidence")
    assert taken.evidence.tried == tried(verdict)


def test_a_run_that_fails_says_nothing_and_stops_nothing(bench: Bench, project: Project) -> None:
    project.settings(FOUR_THREADS)
    project.play(random=True, fails="one-thread")
    first, *others = tried(bench.gate().verdict).tried
    assert first.agree is None
    assert first.problem.startswith("run tried-one-thread-1: python3 train.py exited with 1")
    assert [one.agree for one in others] == [False, False]


def test_what_the_budget_leaves_out_is_told(bench: Bench, project: Project) -> None:
    project.settings("diagnosis: {budget_seconds: 0.5}\n")
    project.play(random=True)
    verdict = bench.gate().verdict
    assert (tried(verdict).tried, tried(verdict).untried) == ((), MEMORY)
    assert brief_of(verdict).happened.endswith(
        "No setting was tried, for lack of time (diagnosis.budget_seconds)."
    )


@pytest.mark.parametrize("settings", ["", "diagnosis: {escalate: false}\n"])
def test_nothing_is_tried_on_a_pass_or_where_it_is_switched_off(
    bench: Bench, project: Project, settings: str
) -> None:
    project.settings(settings)
    project.play(random=bool(settings))
    assert bench.gate().evidence.tried is None


def test_a_drift_is_no_matter_of_settings(bench: Bench, project: Project) -> None:
    bench.record()
    project.play(losses=["2.5", "2.25", "2.0"])
    found = bench.gate()
    assert (found.verdict.outcome, found.evidence.tried) == (Outcome.CODE_DRIFT, None)
