"""The action in two jobs: one runs a stranger's code, the other judges and holds the secrets."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from action_scene import Scene
from cryptography.hazmat.primitives.asymmetric import ec
from fake_vault import FakeVault

from gate.errors import ExitCode
from gate.package.keys import generate_private_key, private_pem
from gate.verdict.history_lines import HISTORY_BRANCH

RUN = {"INPUT_MODE": "run", "INPUT_TOKEN": ""}
JUDGE = {"INPUT_MODE": "judge", "INPUT_OUT": "judged", "INPUT_EVIDENCE": "downloaded"}


def follow(scene: Scene, *, fork: bool, started_by: str = "pull_request") -> dict[str, object]:
    """The event of a workflow that follows the one that ran."""
    owner = "fork" if fork else "o"
    return {
        "workflow_run": {
            "event": started_by,
            "head_sha": scene.project.git("rev-parse", "HEAD"),
            "head_branch": "change",
            "head_repository": {"full_name": f"{owner}/model", "owner": {"login": owner}},
            "pull_requests": [],
        }
    }


def ran(scene: Scene) -> Path:
    """What the artifact of the first job would hold, where the second job puts it."""
    assert scene.run(RUN, fork=True) == ExitCode.PASS
    downloaded = scene.project.path / "downloaded"
    shutil.copytree(scene.project.path / scene.output("evidence_path"), downloaded)
    return downloaded


def judge(scene: Scene, changed: Mapping[str, str] = JUDGE, *, fork: bool = True) -> ExitCode:
    head = scene.project.git("rev-parse", "HEAD")
    repository = "fork/model" if fork else "o/model"
    scene.server.open_pull(number=7, head=head, base=scene.base, fork=repository)
    event = follow(scene, fork=fork)
    return scene.run({"GITHUB_EVENT_NAME": "workflow_run", **changed}, event=event)


def test_a_fork_is_run_without_a_secret_and_judged_without_its_code(scene: Scene) -> None:
    scene.with_baseline()
    requests = len(scene.server.requests)
    ran(scene)
    assert len(scene.server.requests) == requests
    assert scene.output("verdict") == ""
    assert scene.output("exit_reason") == "ran"
    scene.project.write("train.py", "raise SystemExit('the second job must not train')\n")
    assert judge(scene) == ExitCode.PASS
    assert scene.output("verdict") == "reproduced"
    assert "in a workflow that the fork's author may have changed" in scene.comment
    assert "not sealed: a pull request from a fork is never sealed" in scene.said


def test_the_job_that_judges_seals_what_is_no_forks(scene: Scene) -> None:
    scene.with_baseline()
    ran(scene)
    pem = private_pem(generate_private_key(), b"a pass phrase of some length").decode()
    keys = {
        "INPUT_SIGNING_KEY": pem,
        "INPUT_SIGNING_KEY_PASSPHRASE": "a pass phrase of some length",
    }
    assert judge(scene, {**JUDGE, **keys}, fork=False) == ExitCode.PASS
    assert scene.output("bundle_path") == "judged/package.sigstore.json"


def test_the_job_that_judges_seals_by_a_key_in_a_vault(scene: Scene) -> None:
    scene.with_baseline()
    ran(scene)
    with FakeVault() as vault:
        vault.add("gate", ec.generate_private_key(ec.SECP256R1()))
        signer = {"INPUT_SIGNER": "vault:transit/gate", **vault.variables}
        assert judge(scene, {**JUDGE, **signer}, fork=False) == ExitCode.PASS
        assert [path for path, _ in vault.asked] == [
            # before anything is judged, and for the seals: verdict, provenance, model
            *["GET /v1/transit/keys/gate"] * 2,
            *["POST /v1/transit/sign/gate"] * 3,
        ]
    assert scene.output("bundle_path") == "judged/package.sigstore.json"


def test_nothing_of_the_vault_is_asked_for_a_fork(scene: Scene) -> None:
    scene.with_baseline()
    ran(scene)
    with FakeVault() as vault:
        signer = {"INPUT_SIGNER": "vault:transit/gate", **vault.variables}
        assert judge(scene, {**JUDGE, **signer}) == ExitCode.PASS
        assert vault.asked == []


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"INPUT_SIGNER": "kms:gate"}, "input signer: kms: is not a kind of signer"),
        ({"INPUT_SIGNER": "vault:transit/gate"}, "vault: VAULT_ADDR is not set"),
        ({"INPUT_SIGNER": "no-key.pem"}, "there is no signing key no-key.pem"),
        ({"INPUT_SIGNER": "a", "INPUT_SIGNING_KEY": "b"}, "are two ways to give one key"),
        ({"INPUT_SIGNING_KEY": "b"}, "no pass phrase was given for the signing key"),
        ({"INPUT_SIGNER": "exec:/bin/sh WORKSPACE/x"}, "which the pull request controls"),
    ],
)
def test_a_signer_that_cannot_sign_is_refused_before_anything_is_judged(
    scene: Scene, inputs: dict[str, str], message: str
) -> None:
    workspace = str(scene.project.path)
    given = {name: text.replace("WORKSPACE", workspace) for name, text in inputs.items()}
    assert judge(scene, {**JUDGE, **given}, fork=False) == ExitCode.USAGE
    assert any(message in line for line in scene.said), scene.said


def test_a_first_job_that_failed_is_told_on_the_pull_request(scene: Scene) -> None:
    scene.project.play(exit=1)
    assert scene.run(RUN, fork=True) == ExitCode.ERROR
    assert judge(scene) == ExitCode.ERROR
    assert "There is no evidence in" in scene.comment


@pytest.mark.parametrize("name", ["INPUT_SIGNING_KEY", "INPUT_SIGNER"])
def test_the_job_that_runs_refuses_a_key(scene: Scene, name: str) -> None:
    assert scene.run({**RUN, name: "x"}) == ExitCode.USAGE
    assert any("mode run takes no signing key" in line for line in scene.said)


@pytest.mark.parametrize("mode", ["gate", "run"])
def test_only_judging_may_follow_a_workflow(scene: Scene, mode: str) -> None:
    changed = {"GITHUB_EVENT_NAME": "workflow_run", "INPUT_MODE": mode}
    assert scene.run(changed, event=follow(scene, fork=True)) == ExitCode.USAGE
    assert any("event workflow_run: refused because it would run" in line for line in scene.said)


@pytest.mark.parametrize("mode", ["gate", "run", "judge"])
def test_pull_request_target_is_refused_in_every_mode(scene: Scene, mode: str) -> None:
    changed = {"GITHUB_EVENT_NAME": "pull_request_target", "INPUT_MODE": mode}
    assert scene.run(changed) == ExitCode.USAGE
    assert any("event pull_request_target: refused" in line for line in scene.said)
    assert any("Pull requests from forks" in line for line in scene.said)


def test_a_head_that_moved_on_is_not_judged(scene: Scene) -> None:
    event = follow(scene, fork=True)
    code = scene.run({"GITHUB_EVENT_NAME": "workflow_run", **JUDGE}, event=event)
    assert code == ExitCode.ERROR
    assert any("no open pull requests have the head" in line for line in scene.said)


def test_a_workflow_started_otherwise_is_refused(scene: Scene) -> None:
    event = follow(scene, fork=False, started_by="push")
    assert scene.run({"GITHUB_EVENT_NAME": "workflow_run", **JUDGE}, event=event) == ExitCode.USAGE
    assert any("was not started by a pull request" in line for line in scene.said)


def test_a_mode_that_there_is_not_is_named(scene: Scene) -> None:
    assert scene.run({"INPUT_MODE": "trust"}) == ExitCode.USAGE
    assert any("input mode: 'trust' is not one of gate, run, judge" in line for line in scene.said)


def test_on_the_default_branch_the_job_that_trains_nothing_keeps_the_history(scene: Scene) -> None:
    scene.base = scene.project.settings("report: {history: true}\n")
    scene.with_baseline()
    on_main = {"GITHUB_EVENT_NAME": "schedule", "GITHUB_REF": "refs/heads/main"}
    assert scene.run(on_main | RUN, event={}) == ExitCode.PASS
    assert scene.server.branches.refs == {}
    downloaded = scene.project.path / "downloaded"
    shutil.copytree(scene.project.path / scene.output("evidence_path"), downloaded)
    assert scene.run(on_main | JUDGE, event={}) == ExitCode.PASS
    assert '"outcome":"reproduced"' in scene.server.branches.files(HISTORY_BRANCH)["default.jsonl"]
