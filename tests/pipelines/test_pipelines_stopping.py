"""Once two strict runs differ nothing more is run than a diagnosis needs, and that is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gate_bench import Bench
from played_training import SCRIPT, Project

from gate.errors import EvidenceError, RunError
from gate.pipelines.gate import judging, run_only
from gate.report.assembly import ReportLinks
from gate.report.comment import comment_text
from gate.training.runs import StoppedBy
from gate.verdict.verdict import NotRun, Outcome, RunPurpose, Verdict, WhyNotRun

# default runs are part of what these tests are about
pytestmark = pytest.mark.usefixtures("priced")

QUIET = "diagnosis: {escalate: false}\n"
# one after the other: default, two strict, default, then the other two strict
SERIAL = f"{QUIET}repeats: 4\noperator_audit: true\nruns: {{parallel: never}}\n"
AFTER_TWO = {RunPurpose.STRICT_RUNS: 2, RunPurpose.DEFAULT_RUNS: 1, RunPurpose.OPERATOR_AUDIT: 1}


def _left_out(verdict: Verdict) -> dict[RunPurpose, int]:
    assert all(one.why is WhyNotRun.RUNS_DIFFER for one in verdict.not_run)
    return {one.part: one.runs for one in verdict.not_run}


def test_what_can_change_nothing_is_not_run_and_told(bench: Bench, project: Project) -> None:
    project.play(random=True)
    project.settings(SERIAL)
    verdict = bench.gate().verdict
    assert verdict.outcome is Outcome.NONDETERMINISTIC
    assert [run.label for run in verdict.runs if run.label.startswith("strict")] == [
        "strict-1",
        "strict-2",
    ]
    assert _left_out(verdict) == AFTER_TWO
    assert (
        "| Not run | 2 strict runs, 1 default run, 1 operator audit: two strict runs differ |"
        in comment_text(verdict, ReportLinks())
    )
    assert not [one for one in verdict.findings if one.code == "operator-audit-failed"]


def test_side_by_side_a_default_run_is_left_out(bench: Bench, project: Project) -> None:
    project.play(random=True)
    project.settings(f"{QUIET}runs: {{parallel: 2}}\n")
    verdict = bench.gate().verdict
    labels = [run.label for run in verdict.runs]
    if "default-2" in labels:
        pytest.skip("nothing goes side by side on this machine")
    assert labels == ["strict-1", "default-1", "strict-2"]
    assert _left_out(verdict) == {RunPurpose.DEFAULT_RUNS: 1}
    assert verdict.cost is None


ENDS = """
def end(pid, **told):
    whole = {"pid": pid, "rank": 0, "trained": False, "stopped": False, "exceptions": [], **told}
    (out / f"ended-r0-{pid}.json").write_text(json.dumps(whole))
end(os.getpid(), trained=True)
print("ray.train.WorkerGroupError: TrainingStopped")
end(1, exceptions=["ray.train.WorkerGroupError"EXCEPTION], stopped=True)
sys.exit(1)
"""


def test_a_launcher_that_fails_for_the_gates_stop_fails_no_run(
    bench: Bench, project: Project
) -> None:
    project.write("train.py", SCRIPT + ENDS.replace("EXCEPTION", ""))
    # side by side nobody ends the other for it
    project.settings("runs: {parallel: 2}\n")
    gated = bench.gate()
    assert gated.verdict.outcome is Outcome.NO_BASELINE
    ended = {(one.run.exit_code, one.run.stopped_by) for one in gated.evidence.runs}
    assert ended == {(1, StoppedBy.MAX_STEPS)}


def test_a_script_that_ends_by_itself_is_recorded_as_that(bench: Bench, project: Project) -> None:
    by_itself = SCRIPT.replace('"stopped_by": "max_steps"', '"stopped_by": "script"')
    project.write("train.py", by_itself)
    project.commit()
    assert {one.run.stopped_by for one in bench.gate().evidence.runs} == {StoppedBy.SCRIPT}


def test_a_launcher_that_fails_for_something_else_fails_the_run(
    bench: Bench, project: Project
) -> None:
    project.write("train.py", SCRIPT + ENDS.replace("EXCEPTION", ', "builtins.KeyError"'))
    project.commit()
    with pytest.raises(RunError, match=r"stopped every rank .* and then the command exited with 1"):
        bench.gate()


def test_where_the_runs_agree_nothing_is_left_out(bench: Bench, project: Project) -> None:
    project.settings(SERIAL)
    verdict = bench.gate().verdict
    assert verdict.not_run == ()
    assert verdict.strict_runs == 4
    assert "Not run" not in comment_text(verdict, ReportLinks())


def test_runs_that_no_price_was_asked_for_are_typed_and_not_called_left_out(
    bench: Bench, project: Project
) -> None:
    project.settings("cost: {when: never}\n")
    verdict = bench.gate().verdict
    assert verdict.not_run == (
        NotRun(part=RunPurpose.DEFAULT_RUNS, why=WhyNotRun.NOT_PRICED, runs=2),
    )
    assert "Not run" not in comment_text(verdict, ReportLinks())


def test_the_base_commit_is_not_run_for_a_commit_that_does_not_repeat(
    bench: Bench, project: Project
) -> None:
    base = bench.record()
    project.play(random=True, environment={"torch": "2.14.0"})
    verdict = bench.gate(base=base).verdict
    assert verdict.outcome is Outcome.NONDETERMINISTIC
    assert not [run for run in verdict.runs if run.commit == "base"]


def test_the_judging_job_takes_what_was_stopped_and_calls_it_no_pass(
    bench: Bench, project: Project
) -> None:
    project.play(random=True)
    commit = project.settings(SERIAL)
    folder = run_only(bench.request(), bench.adapters())
    bench.out = bench.out.parent / "judged"
    request = replace(bench.request(commit=commit), imported_runs=True)
    verdict = judging(folder)(request, bench.adapters(), None).verdict
    assert (verdict.outcome, verdict.passes) == (Outcome.NONDETERMINISTIC, False)
    assert _left_out(verdict) == AFTER_TWO


def test_runs_that_agree_and_are_too_few_are_refused(bench: Bench, project: Project) -> None:
    commit = project.settings("runs: {parallel: never}\n")
    folder = run_only(bench.request(), bench.adapters())
    bench.out = bench.out.parent / "judged"
    request = bench.request(commit=commit)
    # more than the other job was asked for
    more = replace(request, imported_runs=True, repeats=3)
    with pytest.raises(EvidenceError, match="the evidence contains the runs 'strict-1, default-1"):
        judging(folder)(more, bench.adapters(), None)


@pytest.mark.parametrize(
    ("losses", "strict"), [(["2.5", "nan", "nan"], 1), (["nan", "nan", "nan"], 2)]
)
def test_a_number_that_never_passes_ends_a_call_after_the_first_run_that_shows_it(
    bench: Bench, project: Project, losses: list[str], strict: int
) -> None:
    # from the first step on, a second run tells whether both start from the same weights
    project.play(losses=losses)
    commit = project.settings(SERIAL)
    folder = run_only(bench.request(), bench.adapters())
    bench.out = bench.out.parent / "judged"
    request = replace(bench.request(commit=commit), imported_runs=True)
    for verdict in (bench.gate().verdict, judging(folder)(request, bench.adapters(), None).verdict):
        assert verdict.outcome is Outcome.ERROR
        labels = [run.label for run in verdict.runs if run.label.startswith("strict")]
        assert labels == ["strict-1", "strict-2"][:strict]
        assert {one.why for one in verdict.not_run} == {WhyNotRun.NOT_FINITE}
        assert (verdict.repeat is None) is (strict == 1)
        assert verdict.next_steps[-1].text.endswith("No baseline can be recorded of this result.")
    assert verdict.not_finite is not None
    assert "not compared" in comment_text(verdict, ReportLinks()) or strict == 2
