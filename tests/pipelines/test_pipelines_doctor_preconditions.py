from __future__ import annotations

import pytest
from each_row import each_row

from gate.errors import SettingsError
from gate.pipelines.doctor.health import CheckResult, GateSeen
from gate.pipelines.doctor.preconditions import (
    examined_credentials,
    examined_earlier_runs,
    examined_engine,
    examined_gates,
    examined_history,
    examined_room,
    examined_token,
    failed_check,
)
from gate.settings.gate_settings import GateSettings
from gate.settings.load import parse_settings
from gate.system.github.records import TokenSeen

DIGEST = f"sha256:{'0' * 64}"


def _settings(isolation: str = "") -> GateSettings:
    text = "version: 1\ntrain: {command: python train.py, max_steps: 2}\n" + isolation
    return parse_settings(text.encode(), "repro-gate.yml")


def test_a_fault_keeps_its_details_and_its_hint() -> None:
    row = failed_check("settings", SettingsError("1 error", hint="see schema", details=("line 3",)))
    assert (row.health, row.found, row.fix) == (
        CheckResult.FAIL,
        "1 error; line 3",
        "see schema",
    )


def test_a_base_commit_that_is_not_there_fails() -> None:
    row = examined_history("a" * 40, missing=True, shallow=True)
    assert row.health is CheckResult.FAIL
    assert row.found == "the base commit aaaaaaaaaaaa is not in this clone"
    assert "fetch-depth: 0" in row.fix


def test_a_shallow_clone_is_a_warning_as_long_as_no_base_is_asked_for() -> None:
    row = examined_history("", missing=False, shallow=True)
    assert row.health is CheckResult.WARN
    assert row.found == "the clone is shallow: a base commit may be missing"


def test_a_base_commit_in_a_shallow_clone_is_enough() -> None:
    row = examined_history("b" * 40, missing=False, shallow=True)
    assert row.health is CheckResult.OK


def test_a_credential_that_checkout_left_is_named_and_never_shown() -> None:
    key = "http.https://github.com/.extraheader"
    row = examined_credentials((key,))
    assert (row.health, row.found) == (CheckResult.WARN, f"left in the clone: {key}")
    assert row.fix == "Give actions/checkout `persist-credentials: false`."


@each_row(
    ("seen", "found"),
    [
        (
            TokenSeen(repository_status=200, comment_status=422),
            "may read the repository and comment on the pull request",
        ),
        (
            TokenSeen(repository_status=200, comment_status=403),
            "may not comment on the pull request (403)",
        ),
        (
            TokenSeen(repository_status=200, comment_status=410),
            "may not comment on the pull request (410)",
        ),
        (
            TokenSeen(repository_status=404, comment_status=404),
            "may not read the repository (404)",
        ),
        (
            TokenSeen(problem="https://api.example did not answer within 20 s", fix="Ask later."),
            "did not answer within 20 s",
        ),
    ],
)
def test_a_token_is_told_by_what_it_may(seen: TokenSeen, found: str) -> None:
    row = examined_token(seen, pull_request=True)
    assert found in row.found
    assert (row.health is CheckResult.OK) == (seen.comment_status == 422)
    assert bool(row.fix) == (row.health is CheckResult.WARN)


def test_no_token_matters_on_a_pull_request_only() -> None:
    assert examined_token(None, pull_request=True).health is CheckResult.WARN
    assert examined_token(None, pull_request=False).health is CheckResult.OK


@pytest.mark.parametrize(
    ("seen", "health", "found"),
    [
        (TokenSeen(contents_status=422), CheckResult.OK, "may add a line to the branch"),
        (TokenSeen(contents_status=403), CheckResult.WARN, "may not write the branch"),
        (TokenSeen(problem="no answer", fix="Ask later."), CheckResult.WARN, "not checked"),
        (None, CheckResult.WARN, "not checked: see token"),
    ],
)
def test_a_job_that_adds_a_line_is_told_whether_it_may(
    seen: TokenSeen | None, health: CheckResult, found: str
) -> None:
    row = examined_earlier_runs(seen, on_default_branch=True)
    assert (row.name, row.health) == ("earlier runs", health)
    assert found in row.found
    assert ("`contents: write`" in row.fix) == (seen == TokenSeen(contents_status=403))
    elsewhere = examined_earlier_runs(seen, on_default_branch=False)
    assert elsewhere.found == "only a job on the default branch adds a line"
    assert elsewhere.health is CheckResult.OK


@pytest.mark.parametrize(
    ("isolation", "health"),
    [
        ("", CheckResult.OK),
        (f"isolation: {{image: '{DIGEST}'}}\n", CheckResult.WARN),
        (f"isolation: {{image: '{DIGEST}', mode: container}}\n", CheckResult.FAIL),
        (f"isolation: {{image: '{DIGEST}', minimum: container}}\n", CheckResult.FAIL),
    ],
)
def test_an_engine_matters_as_far_as_the_settings_say(isolation: str, health: CheckResult) -> None:
    assert examined_engine(_settings(isolation), "no engine answers").health is health


@pytest.mark.parametrize(
    ("free_bytes", "health"),
    [(10 * 1024**3, CheckResult.OK), (1024**3, CheckResult.WARN), (1024**2, CheckResult.FAIL)],
)
def test_a_full_disk_is_told_before_it_costs_a_run(free_bytes: int, health: CheckResult) -> None:
    row = examined_room(free_bytes)
    assert row.health is health
    assert row.found.endswith("GiB free in the output folder")


def test_two_settings_files_with_one_id_or_baseline_are_told() -> None:
    seen = [
        GateSeen(config="a.yml", gate_id="default", baseline=".repro-gate/baseline"),
        GateSeen(config="b.yml", gate_id="Default", baseline=".repro-gate/baseline"),
        GateSeen(config="c/d.yml", gate_id="c", baseline="c/.repro-gate/baseline"),
    ]
    (row,) = examined_gates(tuple(seen))
    assert row.health is CheckResult.WARN
    assert row.found == (
        "a.yml and b.yml have one report.gate_id: default; "
        "a.yml and b.yml have one baseline: .repro-gate/baseline"
    )
    assert row.fix.startswith("Give each settings file its own report.gate_id and baseline.path")
    (row,) = examined_gates(tuple(seen[1:]))
    assert row.found == "2 settings files, each with its own report.gate_id and baseline"
    assert examined_gates(tuple(seen[2:])) == ()
