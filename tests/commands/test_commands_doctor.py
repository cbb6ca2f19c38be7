from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from command_line import Run, record
from fake_github import FakeGitHub
from played_training import SETTINGS, Project

from gate.pipelines.call_setup import PROGRAMS
from gate.system.machine import gpus_seen


def _found(ended: str) -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in json.loads(ended)["examined"]}


@pytest.fixture(autouse=True)
def _away_from_a_runner(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """No runner and no engine, wherever the tests run; torch only where a test is about it.

    Else a training would be tried in a Python without packages: torch takes more than a second.
    """
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/engine.sock")
    if request.node.get_closest_marker("torch") or request.node.get_closest_marker("gpu"):
        return
    (tmp_path / "programs").mkdir()
    for name in ("python", "python3"):
        program = tmp_path / "programs" / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S "$@"\n')
        program.chmod(0o755)
    monkeypatch.setenv(PROGRAMS, str(tmp_path / "programs"))


@pytest.mark.torch
def test_a_project_without_a_baseline_is_told_so(project: Project, run: Run) -> None:
    ended = run("doctor")
    # a step of setting up is no fault of the machine
    assert ended.code == 0
    assert "  todo  baseline" in ended.out
    assert "repro-gate.yml is valid" in ended.out
    assert "torch" in ended.out
    assert ".repro-gate/baseline: no baseline is committed" in ended.out
    assert "→ Run `repro-gate baseline record`" in ended.out
    assert not (project.path / "repro-gate-out").exists()


@pytest.mark.torch
def test_what_moved_since_the_baseline_is_named(project: Project, run: Run) -> None:
    record(project, run)
    project.commit()
    ended = run("doctor", "--json")
    row = _found(ended.out)["baseline"]
    assert (ended.code, row["health"]) == (0, "warn")
    assert "the closest entry differs in cpu" in row["found"]


@pytest.mark.torch
def test_a_gpu_that_is_demanded_and_not_there_ends_with_3(project: Project, run: Run) -> None:
    text = (project.path / "repro-gate.yml").read_text()
    (project.path / "repro-gate.yml").write_text(
        text.replace("train:\n", "train:\n  device: cuda\n", 1)
    )
    ended = run("doctor", "--json")
    row = _found(ended.out)["gpu"]
    assert (ended.code, row["health"]) == (3, "fail")


def test_faults_of_the_settings_are_told_and_the_rest_is_looked_at(
    project: Project, run: Run
) -> None:
    (project.path / "repro-gate.yml").write_text("version: 1\n")
    (project.path / "model").mkdir()
    (project.path / "model" / "repro-gate.yml").write_text("version: 1\n")
    # of several files, the one that is meant
    below = run("doctor", "--config", "model/repro-gate.yml", "--json")
    assert _found(below.out)["settings"]["found"].startswith("model/repro-gate.yml: 1 error")
    (project.path / "model" / "repro-gate.yml").unlink()
    ended = run("doctor", "--json")
    found = _found(ended.out)
    assert ended.code == 3
    assert found["settings"]["found"].endswith("train: is required")
    assert found["history"]["found"] == "the clone is complete"
    assert found["baseline"]["found"] == "not checked: see the rows above"


def test_an_engine_that_is_needed_and_missing_fails(project: Project, run: Run) -> None:
    path = project.path / "repro-gate.yml"
    image = f"sha256:{'0' * 64}"
    path.write_text(path.read_text().replace("mode: none", f"mode: container, image: '{image}'"))
    ended = run("doctor", "--json")
    found = _found(ended.out)
    assert ended.code == 3
    assert found["engine"]["found"].endswith("(needed)")
    assert found["isolation"]["health"] == "fail"
    assert found["training"]["found"] == "not checked: see the rows above"


@pytest.mark.usefixtures("project")
def test_a_base_commit_that_is_missing_fails(run: Run) -> None:
    ended = run("doctor", "--json", "--base", "a" * 40)
    row = _found(ended.out)["history"]
    assert (row["health"], row["found"]) == (
        "fail",
        "the base commit aaaaaaaaaaaa is not in this clone",
    )


@pytest.mark.usefixtures("project")
def test_on_a_runner_token_and_isolation_are_looked_at(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    variables = {
        "GITHUB_ACTIONS": "true",
        "GITHUB_EVENT_NAME": "push",
        "GITHUB_REPOSITORY": "org/repo",
        "GITHUB_SHA": "a" * 40,
        "GITHUB_WORKSPACE": str(tmp_path / "project"),
        "GITHUB_API_URL": "http://127.0.0.1:9",
        "GITHUB_TOKEN": "canary-of-the-token",
    }
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    ended = run("doctor", "--json")
    found = _found(ended.out)
    assert found["token"]["found"] == "http://127.0.0.1:9 could not be reached (ConnectionError)"
    assert found["isolation"]["health"] == "fail"
    assert "canary" not in ended.out + ended.err


@pytest.mark.parametrize("allowed", [True, False])
def test_a_job_that_adds_to_the_earlier_runs_is_told_whether_it_may(
    run: Run, monkeypatch: pytest.MonkeyPatch, project: Project, *, allowed: bool
) -> None:
    event = project.write("event.json", '{"repository": {"default_branch": "main"}}')
    settings = (project.path / "repro-gate.yml").read_text()
    with FakeGitHub() as github:
        github.branches.allowed = allowed
        variables = {
            "GITHUB_ACTIONS": "true",
            "GITHUB_EVENT_NAME": "push",
            "GITHUB_EVENT_PATH": str(event),
            "GITHUB_REF": "refs/heads/main",
            "GITHUB_REPOSITORY": "org/repo",
            "GITHUB_SHA": "a" * 40,
            "GITHUB_WORKSPACE": str(project.path),
            "GITHUB_API_URL": github.api_url,
            "GITHUB_TOKEN": github.token,
        }
        for name, text in variables.items():
            monkeypatch.setenv(name, text)
        assert "earlier runs" not in _found(run("doctor", "--json").out)
        assert "POST" not in github.methods()
        project.write("repro-gate.yml", f"{settings}\nreport: {{history: true}}\n")
        row = _found(run("doctor", "--json").out)["earlier runs"]
    assert row["health"] == ("ok" if allowed else "warn")
    assert row["found"] == (
        "may add a line to the branch repro-gate-history"
        if allowed
        else "may not write the branch repro-gate-history (403)"
    )


def test_an_untracked_environment_is_one_thing_to_do(project: Project, run: Run) -> None:
    for name in ("bin/python", "lib/a.py", "lib/b.py"):
        project.write(f".venv/{name}", "x")
    row = _found(run("doctor", "--json").out)["work tree"]
    assert row["health"] == "fail"
    assert row["found"] == "uncommitted changes: `.venv/` is untracked (3 files)"
    assert row["fix"] == "Add `.venv/` to .gitignore and commit that."
    project.write(".gitignore", ".venv/\n")
    project.commit()
    assert _found(run("doctor", "--json").out)["work tree"]["health"] == "ok"


def test_a_submodule_is_refused_by_the_doctor_as_by_the_gate(project: Project, run: Run) -> None:
    head = project.git("rev-parse", "HEAD")
    project.git("update-index", "--add", "--cacheinfo", f"160000,{head},libs/other")
    project.git("commit", "-qm", "a submodule")
    (project.path / "libs" / "other").mkdir(parents=True)
    row = _found(run("doctor", "--json").out)["commit"]
    assert row["health"] == "fail"
    assert row["found"] == "libs/other is a separate repository (a submodule)"
    assert "libs/other is a separate repository (a submodule)" in run("gate", "-q").err


def test_a_repository_without_a_commit_is_told_what_to_do(project: Project, run: Run) -> None:
    shutil.rmtree(project.path / ".git")
    project.git("init", "-q")
    row = _found(run("doctor", "--json").out)["history"]
    assert (row["health"], row["found"]) == ("fail", "this repository has no commit yet")
    assert row["fix"].startswith("`git add` and `git commit` first")
    ended = run("gate")
    assert ended.code == 2
    assert "this repository has no commit yet" in ended.err


def test_a_disk_that_takes_no_folder_is_a_row_beside_all_others(
    project: Project, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    usual = _found(run("doctor", "--json").out)
    found = _found(run("doctor", "--json", "--out", str(tmp_path / "file" / "out")).out)
    assert found.keys() == usual.keys()
    assert found["disk"]["health"] == "fail"
    assert "file" in found["disk"]["found"]
    assert found["settings"]["health"] == "ok"
    assert (tmp_path / "file").read_text() == "in the way"
    assert project.git("status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("python3 missing.py", "missing.py does not exist"),
        ("python3 new.py", "new.py is not committed"),
        ("no-such-program train.py", "no-such-program: not found where the training runs"),
        ("python3 train.py data/x.bin", "ignored by git, so not in the commit: data/x.bin"),
        ("python3 train.py --data=data", "ignored by git, so not in the commit: data"),
        ("python3 train.py --out=runs/new 3", "every file that it names is in the commit"),
        ("python3 -m train /somewhere/else.py", "every file that it names is in the commit"),
    ],
)
def test_what_the_command_names_is_looked_for_in_the_commit(
    project: Project, run: Run, command: str, found: str
) -> None:
    project.write(".gitignore", "data/\n")
    project.write("repro-gate.yml", SETTINGS.replace("python3 train.py", command))
    project.commit()
    project.write("data/x.bin", "x")
    project.write("new.py", "x")
    row = _found(run("doctor", "--json").out)["command"]
    assert row["found"].startswith(found)
    assert (row["health"] == "ok") == found.startswith("every file that it names")


def test_a_command_is_looked_for_below_its_own_folder(project: Project, run: Run) -> None:
    project.write("sub/repro-gate.yml", SETTINGS + "# a project below\n")
    project.commit()
    row = _found(run("doctor", "--json", "--config", "sub/repro-gate.yml").out)["command"]
    assert row["found"] == "train.py does not exist"


@pytest.mark.gpu
def test_a_gpu_is_told_by_the_uuid_that_the_driver_gives(project: Project, run: Run) -> None:
    text = (project.path / "repro-gate.yml").read_text()
    (project.path / "repro-gate.yml").write_text(
        text.replace("train:\n", "train:\n  device: cuda\n", 1)
    )
    row = _found(run("doctor", "--json").out)["gpu"]
    (first, *_) = gpus_seen(os.environ["PATH"]).gpus
    assert row["health"] == "ok"
    # the memory is what torch has of it, somewhat less than the driver tells
    assert f"{first.uuid} (" in row["found"]


def test_ignored_data_that_a_script_reads_is_a_row_with_the_lines_to_paste(
    project: Project, run: Run
) -> None:
    project.write(".gitignore", "data/\n")
    project.write("train.py", 'import numpy\nnumpy.load("data/x.npy")\n')
    project.commit()
    assert "data" not in _found(run("doctor", "--json").out)
    project.write("data/x.npy", "x")
    row = _found(run("doctor", "--json").out)["data"]
    assert row["health"] == "warn"
    assert row["found"].startswith("train.py:2 reads data/x.npy, which git ignores")
    assert f"`data: [{{path: {project.path}/data, at: data}}]`" in row["fix"]
    assert "`git add -f data/x.npy`" in row["fix"]
