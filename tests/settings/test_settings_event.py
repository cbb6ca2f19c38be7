from __future__ import annotations

import json
from pathlib import Path

import pytest
from each_row import each_row

from gate.errors import SettingsError
from gate.settings.event import read_context, read_inputs

HEAD, BASE = "b" * 40, "c" * 40
RUNNER = {
    "GITHUB_EVENT_NAME": "pull_request",
    "GITHUB_REPOSITORY": "octo/model",
    "GITHUB_SHA": "d" * 40,
    "GITHUB_WORKSPACE": "/w",
    "GITHUB_API_URL": "https://ghe.example/api/v3/",
    "GITHUB_SERVER_URL": "https://ghe.example",
    "GITHUB_RUN_ID": "17",
    "GITHUB_OUTPUT": "/o",
}


def _event(
    *, head_repository: str = "octo/model", number: object = 7, branch: object = "main"
) -> bytes:
    pull = {
        "number": number,
        "head": {"sha": HEAD, "repo": {"full_name": head_repository}},
        "base": {"sha": BASE, "ref": branch, "repo": {"full_name": "octo/model"}},
    }
    return json.dumps({"pull_request": pull}).encode()


def test_a_pull_request_is_judged_at_its_head_against_its_base() -> None:
    context = read_context(RUNNER, _event())
    assert context.pull_request is not None
    assert context.pull_request is not None
    assert (context.head_commit, context.pull_request.base_sha) == (HEAD, BASE)
    assert context.base_branch == "main"
    assert not context.pull_request.from_fork
    assert context.run_url == "https://ghe.example/octo/model/actions/runs/17"
    assert context.api_url == "https://ghe.example/api/v3"
    assert (context.output_path, context.summary_path) == (Path("/o"), None)


def test_a_fork_is_recognised() -> None:
    context = read_context(RUNNER, _event(head_repository="stranger/model"))
    assert context.pull_request is not None
    assert context.pull_request.from_fork


def test_a_push_is_judged_at_its_commit() -> None:
    context = read_context({**RUNNER, "GITHUB_EVENT_NAME": "push"}, b"{}")
    assert context.pull_request is None
    assert context.head_commit == "d" * 40


@each_row(
    ("name", "ref", "nightly"),
    [
        ("pull_request", "refs/pull/7/merge", False),
        ("merge_group", "refs/heads/queue", False),
        ("push", "refs/heads/side", False),
        ("push", "refs/heads/main", True),
        ("schedule", "refs/heads/main", True),
        ("workflow_dispatch", "refs/heads/side", True),
    ],
)
def test_nobody_waits_for_a_schedule_a_start_by_hand_and_the_default_branch(
    name: str, ref: str, *, nightly: bool
) -> None:
    about = {
        **json.loads(_event()),
        "merge_group": {"base_sha": BASE, "base_ref": "refs/heads/main"},
        "repository": {"default_branch": "main"},
    }
    runner = {**RUNNER, "GITHUB_EVENT_NAME": name, "GITHUB_REF": ref}
    assert read_context(runner, json.dumps(about).encode()).nightly is nightly


def test_a_group_of_the_merge_queue_is_judged_against_what_it_merges_into() -> None:
    group = {"base_sha": BASE, "base_ref": "refs/heads/v/1", "head_sha": "d" * 40}
    event = json.dumps({"merge_group": group}).encode()
    context = read_context({**RUNNER, "GITHUB_EVENT_NAME": "merge_group"}, event)
    assert (context.head_commit, context.queue_base) == ("d" * 40, BASE)
    assert context.base_branch == "v/1"
    assert context.pull_request is None


@each_row("branch", [None, 7, "", "a b", "a\nb", "a:b", "x" * 256])
def test_what_is_no_branch_is_named(branch: object) -> None:
    with pytest.raises(SettingsError, match=r"no pull_request with .* and base\.ref"):
        read_context(RUNNER, _event(branch=branch))


@pytest.mark.parametrize("event", [b"{}", b'{"merge_group": {"base_sha": 7}}', b"[]"])
def test_a_merge_group_without_its_base_is_named(event: bytes) -> None:
    with pytest.raises(SettingsError, match="no merge_group with base_sha and base_ref"):
        read_context({**RUNNER, "GITHUB_EVENT_NAME": "merge_group"}, event)


@pytest.mark.parametrize("name", ["push", "schedule", "workflow_dispatch"])
def test_a_commit_by_itself_has_no_base_that_decides(name: str) -> None:
    context = read_context({**RUNNER, "GITHUB_EVENT_NAME": name}, b"{}")
    assert (context.head_commit, context.queue_base) == ("d" * 40, None)
    assert context.base_branch == ""


@pytest.mark.parametrize("name", ["pull_request_target", "workflow_run"])
def test_a_trigger_that_lends_secrets_to_strangers_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="refused because it would run the pull request's code"):
        read_context({**RUNNER, "GITHUB_EVENT_NAME": name}, _event())


@each_row(
    ("changed", "event", "message"),
    [
        ({"GITHUB_EVENT_NAME": "star"}, b"{}", "event 'star': not supported"),
        ({"GITHUB_REPOSITORY": "x"}, _event(), "GITHUB_REPOSITORY 'x' is not owner/name"),
        ({}, b"{}", "no pull_request with number, head.sha, base.sha and base.ref"),
        ({}, _event(number="7"), "no pull_request with number, head.sha, base.sha and base.ref"),
        ({"GITHUB_EVENT_NAME": "push", "GITHUB_SHA": "x"}, b"{}", "GITHUB_SHA 'x' is not"),
    ],
)
def test_a_malformed_event_is_named(changed: dict[str, str], event: bytes, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_context({**RUNNER, **changed}, event)
    assert message in str(caught.value)


def test_no_run_address_without_a_server() -> None:
    context = read_context({**RUNNER, "GITHUB_SERVER_URL": ""}, _event())
    assert context.run_url == ""


def test_inputs_have_defaults_and_hold_no_secret() -> None:
    inputs = read_inputs({"INPUT_TOKEN": "hush", "INPUT_SIGNING_KEY": "hush"})
    assert (inputs.out, inputs.comment, inputs.config) == ("repro-gate-out", True, "")
    assert "hush" not in repr(inputs)


@pytest.mark.parametrize("out", ["/etc", "../elsewhere", "a/../../b"])
def test_the_output_folder_lies_in_the_workspace(out: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_inputs({"INPUT_OUT": out})
    assert caught.value.message == (
        f"input out: {out!r} must be a relative path inside the project, without '..'"
    )
    assert caught.value.hint == "Name a folder such as repro-gate-out."


def test_a_flag_is_true_or_false() -> None:
    assert read_inputs({"INPUT_COMMENT": "False"}).comment is False
    with pytest.raises(SettingsError, match="input comment: 'yes' is neither true nor false"):
        read_inputs({"INPUT_COMMENT": "yes"})


def test_no_status_is_set_unless_asked_for() -> None:
    assert not read_inputs({}).status
    assert read_inputs({"INPUT_STATUS": "true"}).status


@pytest.mark.parametrize("reason", ["two\nlines", "bell\x07", "x" * 301])
def test_a_reason_is_one_line(reason: str) -> None:
    assert read_inputs({"INPUT_BASELINE_REASON": "new driver"}).baseline_reason == "new driver"
    with pytest.raises(SettingsError, match="input baseline_reason: not one line of at most 300"):
        read_inputs({"INPUT_BASELINE_REASON": reason})


@pytest.mark.parametrize(
    ("given", "out", "artifact"),
    [
        ({}, "repro-gate-out", ""),
        ({"GATE_ID": "a100"}, "repro-gate-out-a100", "repro-gate-a100"),
        ({"GATE_ID": "default"}, "repro-gate-out", ""),
        ({"GATE_ID": "a100", "ARTIFACT": "mine", "OUT": "out"}, "out", "mine"),
    ],
)
def test_a_gate_of_several_has_a_folder_and_an_artifact_of_its_own(
    given: dict[str, str], out: str, artifact: str
) -> None:
    inputs = read_inputs({f"INPUT_{name}": value for name, value in given.items()})
    assert (inputs.out, inputs.artifact) == (out, artifact)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("GATE_ID", "a b", "input gate_id: 'a b' is not the id of a gate"),
        ("ARTIFACT", "a/b", "input artifact: 'a/b' is not the name of an artifact"),
    ],
)
def test_a_name_that_no_gate_or_artifact_can_have_is_refused(
    name: str, text: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        read_inputs({f"INPUT_{name}": text})
