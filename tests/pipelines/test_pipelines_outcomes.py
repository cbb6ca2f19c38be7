from __future__ import annotations

import re

import pytest
from baseline_cases import FOLDER
from gate_bench import Bench
from played_training import Project

from gate.errors import (
    BaselineError,
    DocumentError,
    EvidenceError,
    RepositoryError,
    RunError,
    SettingsError,
)
from gate.report.brief import brief_of
from gate.verdict.verdict import Outcome

TOLERANCE = "compare: {tolerances: [{metric: '*loss', absolute: 0.5}]}\n"


def test_without_a_baseline_the_entry_is_proposed(bench: Bench) -> None:
    found = bench.gate()
    assert found.verdict.outcome is Outcome.NO_BASELINE
    assert found.proposed is not None
    assert found.proposed.commit == found.verdict.commit


@pytest.mark.usefixtures("priced")
def test_an_unchanged_training_reproduces_its_baseline(bench: Bench) -> None:
    bench.record()
    verdict = bench.gate().verdict
    assert (verdict.outcome, verdict.passes) == (Outcome.REPRODUCED, True)
    assert [run.label for run in verdict.runs] == [
        "strict-1",
        "default-1",
        "default-2",
        "strict-2",
    ]
    assert all(probe.caught for probe in verdict.self_test)


def test_the_verdict_says_where_the_calls_time_went(bench: Bench) -> None:
    bench.record()
    verdict = bench.gate().verdict
    timeline = verdict.timeline
    assert timeline is not None
    runs = {run.label: run for run in verdict.runs}
    assert {timed.label for timed in timeline.runs} == set(runs)
    for timed in timeline.runs:
        run = runs[timed.label]
        assert timed.begun_seconds == run.begun_seconds > 0
        assert timed.ended_seconds == pytest.approx(run.begun_seconds + run.wall_seconds)
    whole = timeline.training_seconds + timeline.own_seconds
    assert whole == pytest.approx(timeline.seconds, abs=0.01)
    works = [span.work.value for span in timeline.own if not span.about]
    assert works == ["preparing", "preparing", "keeping", "judging", "cleaning up", "judging"]
    about = {(span.work.value, span.about) for span in timeline.own if span.about}
    assert about == {(work, label) for work in ("preparing", "reading") for label in runs}


def test_a_training_that_draws_from_the_system_is_nondeterministic(
    bench: Bench, project: Project
) -> None:
    project.play(random=True)
    found = bench.gate()
    assert found.verdict.outcome is Outcome.NONDETERMINISTIC
    assert found.verdict.diagnosis is not None
    assert found.verdict.diagnosis.first_step == 3
    assert found.proposed is None


def test_other_numbers_in_the_same_environment_are_code_drift(
    bench: Bench, project: Project
) -> None:
    bench.record()
    project.play(losses=["2.5", "2.25", "2.0"])
    assert bench.gate().verdict.outcome is Outcome.CODE_DRIFT


def test_a_tolerance_lets_small_differences_pass(bench: Bench, project: Project) -> None:
    project.settings(TOLERANCE)
    bench.record()
    project.play(losses=["2.5", "2.25", "2.0"])
    assert bench.gate().verdict.outcome is Outcome.WITHIN_TOLERANCE


def test_moved_weights_beside_equal_losses_are_found_and_fail_beyond_a_limit(
    bench: Bench, project: Project
) -> None:
    project.settings(TOLERANCE)
    bench.record()
    project.play(weights="other")
    verdict = bench.gate().verdict
    assert verdict.outcome is Outcome.WITHIN_TOLERANCE
    (found,) = (one for one in verdict.findings if one.code == "tensors-unbounded")
    assert re.search(r"state/model/0/weight differs by about 0\.\d+ of its size$", found.message)
    project.settings(TOLERANCE.replace("}]}", "}], tensors: {relative: 0.01}}"))
    verdict = bench.gate().verdict
    assert verdict.outcome is Outcome.CODE_DRIFT
    assert verdict.cause.endswith("compare.tensors allows 0.01")
    assert brief_of(verdict).happened.startswith("Tensor state/model/0/weight moved by about ")


def test_settings_of_another_training_are_not_comparable(bench: Bench, project: Project) -> None:
    bench.record()
    project.settings("determinism: {threads: 2}\n")
    assert bench.gate().verdict.outcome is Outcome.NOT_COMPARABLE


def test_nan_is_an_error_and_no_verdict_about_repeatability(bench: Bench, project: Project) -> None:
    project.play(losses=["2.5", "nan", "1.0"])
    verdict = bench.gate().verdict
    assert verdict.outcome is Outcome.ERROR
    assert verdict.cause.startswith("metric loss is nan at step 2")
    with pytest.raises(BaselineError, match=r"loss holds nan at step 2"):
        bench.record()


@pytest.mark.usefixtures("priced")
def test_default_mode_that_differs_is_only_told(bench: Bench, project: Project) -> None:
    project.play(default={"random": True})
    bench.record()
    verdict = bench.gate().verdict
    assert verdict.passes
    assert "default-mode-differs" in [finding.code for finding in verdict.findings]


def _move_environment(project: Project, **changes: object) -> None:
    project.play(environment={"driver": "9.9"}, **changes)


def test_a_moved_environment_alone_cannot_decide(bench: Bench, project: Project) -> None:
    bench.record()
    _move_environment(project, losses=["2.5", "2.25", "2.0"])
    verdict = bench.gate().verdict
    assert verdict.outcome is Outcome.ENVIRONMENT_DRIFT
    assert "environment-moved" in [finding.code for finding in verdict.findings]


def test_the_base_commit_on_this_machine_decides(bench: Bench, project: Project) -> None:
    bench.record()
    _move_environment(project, losses=["2.5", "2.25", "2.0"])
    verdict = bench.gate(base="HEAD").verdict
    assert verdict.outcome is Outcome.WITHIN_TOLERANCE
    assert [run.label for run in verdict.runs][-2:] == ["base-1", "base-2"]


def test_code_that_differs_from_the_base_on_this_machine_is_code_drift(
    bench: Bench, project: Project
) -> None:
    bench.record()
    _move_environment(project, losses=["2.5", "2.25", "2.0"])
    base = project.git("rev-parse", "HEAD")
    _move_environment(project, losses=["2.5", "2.25", "1.0"])
    assert bench.gate(base=base).verdict.outcome is Outcome.CODE_DRIFT


@pytest.mark.usefixtures("priced")
@pytest.mark.parametrize("policy", ["", "policy: {run_base_on_drift: false}\n"])
def test_the_base_is_run_only_where_it_decides(bench: Bench, project: Project, policy: str) -> None:
    project.settings(policy)
    bench.record()
    if policy:
        _move_environment(project, losses=["2.5", "2.25", "2.0"])
    assert len(bench.gate(base="HEAD").verdict.runs) == 4


def test_a_dirty_tree_is_refused_and_named(bench: Bench, project: Project) -> None:
    project.write("play.json", (project.path / "play.json").read_text() + " ")
    project.write("new.txt", "")
    with pytest.raises(RepositoryError, match="2 uncommitted") as caught:
        bench.gate()
    assert caught.value.details == ("new.txt", "play.json")


def test_a_dirty_tree_may_be_allowed_and_is_told(bench: Bench, project: Project) -> None:
    bench.record()
    project.write("notes.txt", "x")
    verdict = bench.gate(allow_dirty=True).verdict
    assert verdict.outcome is Outcome.REPRODUCED
    assert verdict.changed_files == ("notes.txt",)
    assert "dirty-tree" in [finding.code for finding in verdict.findings]


def test_an_explicit_commit_is_trained_whatever_the_tree_looks_like(
    bench: Bench, project: Project
) -> None:
    commit = bench.record()
    project.play(losses=["9.0"])
    project.write("untracked.txt", "")
    verdict = bench.gate(commit=commit).verdict
    assert (verdict.outcome, verdict.commit) == (Outcome.REPRODUCED, commit)


@pytest.mark.usefixtures("priced")
def test_a_training_that_fails_is_an_error_with_its_last_lines(
    bench: Bench, project: Project
) -> None:
    project.play(exit=1, says="Traceback: no such column")
    with pytest.raises(RunError, match=r"run default-1: python3 train.py exited with 1") as caught:
        bench.gate()
    assert caught.value.details == ("Traceback: no such column",)


def test_two_runs_that_crash_alike_are_never_equal(bench: Bench, project: Project) -> None:
    bench.record()
    project.play(strict={"exit": 3})
    with pytest.raises(RunError, match="exited with 3"):
        bench.gate()


def test_a_gpu_that_was_asked_for_and_not_used_is_an_error(bench: Bench, project: Project) -> None:
    settings = (project.path / "repro-gate.yml").read_text()
    project.write("repro-gate.yml", settings.replace("3\n", "3\n  device: cuda\n"))
    project.commit()
    with pytest.raises(RunError, match=r"train.device is cuda, but the training ran on the CPU"):
        bench.gate()
    project.play(environment={"device": "a GPU"})
    assert bench.gate().verdict.outcome is Outcome.NO_BASELINE


@pytest.mark.usefixtures("priced")
def test_a_training_without_end_is_stopped(bench: Bench, project: Project) -> None:
    settings = (project.path / "repro-gate.yml").read_text()
    project.write("repro-gate.yml", settings.replace("3\n", "3\n  timeout_seconds: 0.5\n"))
    project.play(sleep=60)
    with pytest.raises(RunError, match=r"run default-1: timed out after 0.5 s"):
        bench.gate()


def test_a_command_that_does_not_exist_is_named(bench: Bench, project: Project) -> None:
    project.write("repro-gate.yml", "version: 1\ntrain: {command: nosuch x, max_steps: 1}\n")
    project.commit()
    with pytest.raises(RunError, match="cannot start nosuch: command not found"):
        bench.gate()


def test_a_script_without_the_harness_left_nothing_to_judge(bench: Bench, project: Project) -> None:
    project.write("train.py", "print('no torch here')\n")
    project.commit()
    with pytest.raises(EvidenceError):
        bench.gate()


def test_a_missing_data_file_is_the_scripts_own_error(bench: Bench, project: Project) -> None:
    project.write("train.py", "open('data/nowhere.csv')\n")
    project.commit()
    with pytest.raises(RunError) as caught:
        bench.gate()
    assert "No such file or directory: 'data/nowhere.csv'" in caught.value.details[-1]


def test_a_baseline_of_another_schema_is_told_apart(bench: Bench, project: Project) -> None:
    project.write(f"{FOLDER}/cpu.json", '{"schema_version": "repro-gate.baseline-entry/0"}')
    project.commit()
    with pytest.raises(DocumentError, match=r"schema version 'repro-gate.baseline-entry/0'"):
        bench.gate()


def test_the_output_folder_never_makes_the_tree_dirty(bench: Bench, project: Project) -> None:
    bench.out = project.path / "results"
    bench.gate()
    assert project.git("status", "--porcelain") == ""
    assert not (bench.out / "work").exists()


def test_a_repository_is_no_output_folder(bench: Bench, project: Project) -> None:
    bench.out = project.path
    with pytest.raises(SettingsError, match="is a repository"):
        bench.gate()
    assert (project.path / "train.py").exists()
    # not even a lock: it would be an uncommitted change of the next call
    assert project.git("status", "--porcelain") == ""


@pytest.mark.usefixtures("priced")
def test_speed_stands_in_the_verdict_and_decides_nothing(bench: Bench, project: Project) -> None:
    project.settings("cost: {warmup_steps: 1}")
    project.play(samples=32, strict={"seconds": 0.2})
    bench.record()
    project.play(samples=32, strict={"seconds": 0.4})
    verdict = bench.gate().verdict
    assert verdict.outcome is Outcome.REPRODUCED
    strict, default = verdict.performance
    assert strict.samples_per_second == pytest.approx(80, rel=0.01)
    assert default.steps_per_second == pytest.approx(10, rel=0.01)
