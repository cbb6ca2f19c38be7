"""`python -m gate action` against a server that plays GitHub; the training is a played one."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from action_scene import APART, Scene
from baseline_cases import forged, only_entry, place_of_entry
from github_failures import Failure

from gate.commands.digest import run as digest_command
from gate.errors import ExitCode
from gate.isolation.modes import IsolationMode

LAST_LOSS_FORGED = (
    '"decimal": "2.125", "hex": "0x1.1000000000000p+1"',
    '"decimal": "9.0", "hex": "0x1.2000000000000p+3"',
)


def test_the_first_call_creates_the_comment_and_the_second_updates_it(scene: Scene) -> None:
    assert scene.run() == ExitCode.FAIL
    assert "repeatable; no baseline yet" in scene.comment
    assert any(line.startswith("comment created: http") for line in scene.said)
    scene.with_baseline()
    assert scene.run() == ExitCode.PASS
    assert "reproduced" in scene.comment
    assert any(line.startswith("comment updated: http") for line in scene.said)


def test_two_legs_of_a_matrix_share_neither_comment_nor_folder_nor_status(scene: Scene) -> None:
    run = {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_RUN_ID": "4711"}
    for gate_id in ("a100", "h100"):
        scene.run({**run, "INPUT_GATE_ID": gate_id, "INPUT_STATUS": "true"})
    first, second = (comment.body for comment in scene.server.comments)
    assert first.startswith("<!-- repro-gate:a100 -->\n### ")
    assert "repro-gate (a100) " in first
    assert "from this run's artifact repro-gate-a100, and commit it" in first
    assert "baseline accept --run 4711 --artifact repro-gate-h100 --reason" in second
    assert (scene.project.path / "repro-gate-out-a100" / "verdict.json").exists()
    contexts = [status["context"] for status in scene.statuses()]
    assert contexts == ["repro-gate/a100 (into main)", "repro-gate/h100 (into main)"]


def test_a_fault_before_the_settings_are_read_takes_no_other_gates_comment(scene: Scene) -> None:
    scene.run({"INPUT_CONFIG": "lab/nlp/repro-gate.yml"})
    assert scene.comment.startswith("<!-- repro-gate:lab-nlp -->")
    scene.run({"INPUT_CONFIG": "missing.yml", "INPUT_GATE_ID": "a100"})
    assert scene.server.comments[-1].body.startswith("<!-- repro-gate:a100 -->")


def test_outputs_and_summary_reach_the_runners_files(scene: Scene) -> None:
    scene.with_baseline()
    (scene.folder / "output").write_text("")
    scene.run()
    assert scene.output("verdict") == "reproduced"
    assert scene.output("exit_code") == "0"
    assert scene.output("package_path") == "repro-gate-out/package.tar"
    assert scene.output("report_path") == "repro-gate-out/report.html"
    assert "outcome `reproduced`" in (scene.folder / "summary").read_text()
    assert any(line.startswith("::notice title=repro-gate passed") for line in scene.said)


def test_the_digest_of_the_comment_is_the_first_that_the_digest_of_the_package_prints(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.run()
    digest_command([str(scene.project.path / "repro-gate-out/package.tar"), "--json"])
    root = json.loads(capsys.readouterr().out)["root"]
    assert f"| Checkpoint digest | `{root}` |" in scene.comment
    assert scene.output("checkpoint_digest") == root


def test_what_a_reader_is_told_names_no_path_of_the_runner(scene: Scene) -> None:
    scene.run()
    out = scene.project.path / "repro-gate-out"
    assert "download proposed-baseline.json from this run's artifacts" in scene.comment
    names = ("comment.md", "summary.md", "report.html", "verdict.json")
    assert not [name for name in names if str(scene.project.path) in (out / name).read_text()]


def test_post_step_is_told_what_to_look_for(scene: Scene) -> None:
    scene.run({"GITHUB_STATE": str(scene.folder / "state")})
    run, container = (scene.folder / "state").read_text().splitlines()
    assert re.fullmatch(r"repro_gate_run=[0-9a-f]{16}", run)
    assert container.startswith("repro_gate_container=")


def test_a_comment_that_may_not_be_posted_changes_nothing_else(scene: Scene) -> None:
    scene.with_baseline()
    scene.said.clear()
    scene.server.fail_next("GET", Failure.REFUSED)
    assert scene.run() == ExitCode.PASS
    assert any(line.startswith("no comment: ") for line in scene.said)
    assert (scene.folder / "summary").read_text()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"INPUT_TOKEN": ""}, "no comment: no token was given"),
        ({"INPUT_COMMENT": "false"}, "no comment: input comment is false"),
        ({"GITHUB_EVENT_NAME": "push"}, "no comment: this event has no pull request"),
        ({"GITHUB_API_URL": "ftp://x"}, "no comment: "),
    ],
)
def test_without_a_comment_the_verdict_stands(
    scene: Scene, changed: dict[str, str], reason: str
) -> None:
    assert scene.run(changed) == ExitCode.FAIL
    assert any(line.startswith(reason) for line in scene.said)
    assert scene.server.comments == ()


def test_the_base_says_after_which_results_there_is_a_comment(scene: Scene) -> None:
    scene.base = scene.project.settings("report: {comment: failures}\n")
    scene.base = scene.propose()
    assert "repeatable; no baseline yet" in scene.comment
    # a pass writes none, but what was red does not stay so
    assert scene.run() == ExitCode.PASS
    assert "repro-gate passed: same result, bit for bit" in scene.comment


def test_the_base_may_want_no_comment_at_all(scene: Scene) -> None:
    scene.base = scene.project.settings("report: {comment: never}\n")
    assert scene.run() == ExitCode.FAIL
    assert "no comment: report.comment is never" in scene.said
    assert scene.server.comments == ()


def test_a_baseline_forged_by_the_pull_request_does_not_decide(scene: Scene) -> None:
    scene.with_baseline()
    scene.project.play(losses=["2.5", "2.25", "9.0"])
    path = only_entry(scene.project.path)
    edited = path.read_text().replace(*LAST_LOSS_FORGED)
    assert edited != path.read_text()
    path.write_text(forged(edited))
    scene.project.commit()
    assert scene.run() == ExitCode.FAIL
    assert "changes .repro-gate/baseline;" in scene.comment.replace("\\", "")


def test_a_pull_request_may_bring_a_baseline_that_it_reproduces(scene: Scene) -> None:
    scene.with_baseline()
    scene.project.play(losses=["2.5", "2.25", "9.0"])
    scene.run()
    proposed = scene.project.path / "repro-gate-out" / "proposed-baseline.json"
    scene.project.write(place_of_entry(proposed.read_text()), proposed.read_text())
    scene.project.commit()
    assert scene.run() == ExitCode.PASS
    assert scene.output("verdict") == "baseline-change"
    assert any(
        "includes a new .repro-gate/baseline, and it decided the outcome" in one
        for one in scene.said
    )


def test_settings_that_the_pull_request_loosens_gain_nothing(scene: Scene) -> None:
    scene.with_baseline()
    scene.project.play(losses=["2.5", "2.25", "9.0"])
    scene.project.settings("compare: {tolerances: [{metric: '*', absolute: 100}]}\n")
    assert scene.run() == ExitCode.FAIL
    assert "changes repro-gate.yml" in scene.comment.replace("\\", "")


def test_a_fork_gets_no_signature_and_no_use_of_the_token(scene: Scene) -> None:
    scene.with_baseline()
    before = len(scene.server.requests)
    assert scene.run({"INPUT_SIGNING_KEY": "anything"}, fork=True) == ExitCode.PASS
    assert "not sealed: a pull request from a fork is never sealed" in scene.said
    assert len(scene.server.requests) == before
    assert any("no comment: a fork's code ran in this job" in line for line in scene.said)


def test_training_beside_the_steps_secrets_is_refused(scene: Scene) -> None:
    scene.apart = replace(APART, mode=IsolationMode.NONE, reason="the gate does not run as root")
    assert scene.run() == ExitCode.USAGE
    assert any("the training would share the action's account" in line for line in scene.said)
    assert scene.output("exit_reason") == "usage"


def test_a_training_that_fails_is_told_on_the_pull_request(scene: Scene) -> None:
    scene.project.play(exit=1, says="@everyone ::error::no such column")
    assert scene.run() == ExitCode.ERROR
    assert "exited with 1" in scene.comment
    assert "@everyone" not in scene.comment
    log = [line.strip() for text in scene.said for line in text.splitlines()]
    assert "@everyone : :error: :no such column" in log


def test_a_settings_file_must_exist_somewhere(scene: Scene) -> None:
    assert scene.run({"INPUT_CONFIG": "nowhere.yml"}) == ExitCode.USAGE
    assert any("nowhere.yml: not in commit" in line for line in scene.said)
    said = " ".join(scene.said)
    assert "This repository has others. Set the action's input: config: repro-gate.yml" in said


def test_a_settings_file_of_the_other_suffix_is_named(scene: Scene) -> None:
    assert scene.run({"INPUT_CONFIG": "repro-gate.yaml"}) == ExitCode.USAGE
    said = " ".join(scene.said)
    assert "Rename it: git mv repro-gate.yml repro-gate.yaml. Or set the action's " in said
    assert "input: config: repro-gate.yml" in said


def test_a_push_may_name_a_base_for_a_moved_environment(scene: Scene) -> None:
    scene.with_baseline()
    scene.project.play(environment={"driver": "9"}, losses=["2.5", "2.25", "2.0"])
    code = scene.run({"GITHUB_EVENT_NAME": "push", "INPUT_BASE": "HEAD"})
    assert code == ExitCode.PASS


def test_a_broken_event_file_ends_before_anything_runs(scene: Scene) -> None:
    assert scene.run({"GITHUB_EVENT_PATH": "/nowhere/event.json"}) == ExitCode.ERROR
    assert any(line.startswith("::error title=") for line in scene.said)
    assert scene.run({"GITHUB_EVENT_NAME": "pull_request_target"}) == ExitCode.USAGE
