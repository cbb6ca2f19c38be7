"""What the action tells beside the comment, and who decides when a merge queue calls."""

from __future__ import annotations

import json

import pytest
from action_scene import Scene
from baseline_cases import place_of_entry
from github_failures import Failure

from gate.errors import ExitCode

STATUS = {"INPUT_STATUS": "true"}
QUEUE = {"GITHUB_EVENT_NAME": "merge_group"}


def test_without_the_input_no_status_is_set(scene: Scene) -> None:
    scene.run()
    assert scene.statuses() == []


def test_the_status_stands_on_the_pull_requests_head_and_not_on_the_merge(scene: Scene) -> None:
    scene.with_baseline()
    assert scene.run({**STATUS, "GITHUB_SHA": "e" * 40}) == ExitCode.PASS
    (status,) = scene.statuses()
    assert status["state"] == "success"
    assert status["context"] == "repro-gate (into main)"
    assert status["description"].startswith("passed: same result, bit for bit. ")
    assert scene.server.statuses("e" * 40) == ()


def test_a_failure_and_a_fault_are_no_success(scene: Scene) -> None:
    assert scene.run(STATUS) == ExitCode.FAIL
    scene.project.play(exit=1)
    assert scene.run(STATUS) == ExitCode.ERROR
    assert scene.run({**STATUS, "INPUT_CONFIG": "nowhere.yml"}) == ExitCode.USAGE
    states = [(one["state"], one["context"]) for one in scene.statuses()]
    assert states == [
        ("error", "repro-gate (into main)"),
        ("error", "repro-gate (nowhere.yml) (into main)"),
    ]


def test_a_commit_that_cannot_be_checked_again_loses_its_success(scene: Scene) -> None:
    scene.with_baseline()
    scene.run(STATUS)
    scene.run({**STATUS, "INPUT_BASE": "nowhere", "GITHUB_EVENT_NAME": "push"})
    assert [(one["state"], one["context"]) for one in scene.statuses()] == [
        ("success", "repro-gate (into main)"),
        # of the commit alone: no merge is judged by a push
        ("error", "repro-gate"),
    ]
    assert scene.statuses()[-1]["description"].startswith("could not check. ")


def test_two_pull_requests_with_one_head_do_not_answer_for_each_other(scene: Scene) -> None:
    scene.with_baseline()
    strict = scene.base
    scene.project.play(losses=["2.5", "2.25", "9.0"])
    assert scene.run(STATUS) == ExitCode.FAIL
    # another base allows what main does not
    head = scene.project.git("rev-parse", "HEAD")
    scene.project.git("checkout", "-q", strict)
    scene.base = scene.project.settings("compare: {tolerances: [{metric: '*', absolute: 100}]}\n")
    scene.project.git("checkout", "-q", head)
    scene.base_branch = "weak"
    assert scene.run(STATUS) == ExitCode.PASS
    assert [(one["state"], one["context"]) for one in scene.statuses()] == [
        ("failure", "repro-gate (into main)"),
        ("success", "repro-gate (into weak)"),
    ]


def test_the_merge_queue_reports_the_context_of_the_pull_request(scene: Scene) -> None:
    scene.with_baseline()
    assert scene.run({**STATUS, **QUEUE}) == ExitCode.PASS
    assert scene.statuses()[-1]["context"] == "repro-gate (into main)"


def test_a_status_that_may_not_be_set_changes_no_verdict(scene: Scene) -> None:
    scene.base = scene.propose()
    scene.server.fail_next("PATCH", Failure.REFUSED)
    scene.server.fail_next("POST", Failure.REFUSED)
    assert scene.run(STATUS) == ExitCode.PASS
    assert any("no status: the token may not set a commit status (403)" in s for s in scene.said)


def test_a_status_without_a_token_is_told(scene: Scene) -> None:
    scene.run({**STATUS, "INPUT_TOKEN": ""})
    assert "no status: no token was given" in scene.said


def test_in_the_merge_queue_the_base_decides_too(scene: Scene) -> None:
    scene.with_baseline()
    scene.project.play(losses=["2.5", "2.25", "9.0"])
    scene.project.settings("compare: {tolerances: [{metric: '*', absolute: 100}]}\n")
    assert scene.run(QUEUE) == ExitCode.FAIL
    assert scene.output("verdict") == "code-drift"
    assert scene.output("comment_url") == ""


def test_the_merge_queue_takes_a_baseline_that_is_reproduced(scene: Scene) -> None:
    scene.with_baseline()
    scene.project.play(losses=["2.5", "2.25", "9.0"])
    scene.propose()
    assert scene.run(QUEUE) == ExitCode.PASS
    assert scene.output("verdict") == "baseline-change"


@pytest.mark.parametrize("event", ["push", "schedule", "workflow_dispatch"])
def test_a_commit_by_itself_is_held_against_its_own_baseline(scene: Scene, event: str) -> None:
    assert scene.run({"GITHUB_EVENT_NAME": event}) == ExitCode.FAIL
    assert scene.output("verdict") == "no-baseline"
    assert scene.output("proposed_baseline_path") == "repro-gate-out/proposed-baseline.json"


def test_the_proposed_baseline_says_why_it_is_recorded(scene: Scene) -> None:
    scene.run({"GITHUB_EVENT_NAME": "workflow_dispatch", "INPUT_BASELINE_REASON": "new driver"})
    proposed = scene.project.path / scene.output("proposed_baseline_path")
    assert json.loads(proposed.read_text())["reason"] == "new driver"
    target = scene.output("proposed_baseline_target")
    assert target == place_of_entry(proposed.read_text())
    # what the comment names is where it belongs
    assert f"commit it as {target} in this pull request" in (
        scene.project.path / "repro-gate-out/summary.md"
    ).read_text().replace("\\", "")


def test_a_result_that_may_not_be_recorded_proposes_nothing(scene: Scene) -> None:
    scene.project.play(random=True)
    assert scene.run() == ExitCode.FAIL
    assert scene.output("proposed_baseline_path") == ""
    assert scene.output("proposed_baseline_target") == ""


def test_a_deleted_branch_is_no_success(scene: Scene) -> None:
    assert scene.run({"GITHUB_EVENT_NAME": "push", "GITHUB_SHA": "0" * 40}) == ExitCode.USAGE
    assert scene.output("exit_reason") == "usage"


def test_a_forks_code_gets_no_use_of_the_token_for_a_status(scene: Scene) -> None:
    scene.run(STATUS, fork=True)
    assert scene.statuses() == []
    assert any(line.startswith("no status: a fork's code ran in this job") for line in scene.said)


def test_a_job_that_only_runs_sets_no_status(scene: Scene) -> None:
    assert scene.run({**STATUS, "INPUT_MODE": "run"}) == ExitCode.PASS
    assert scene.statuses() == []
