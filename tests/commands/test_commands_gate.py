from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Run, record
from played_training import Project


def _recorded(project: Project, run: Run) -> None:
    record(project, run, "--reason", "first")
    project.commit()


def test_a_pass_ends_with_0_and_leaves_every_document(project: Project, run: Run) -> None:
    _recorded(project, run)
    ended = run("gate", "--out", "results")
    assert ended.code == 0
    assert "repro-gate passed: same result, bit for bit" in ended.out
    assert "default-1: training, default mode: ended after" in ended.err
    left = {path.name for path in (project.path / "results").iterdir()}
    assert left >= {"comment.md", "summary.md", "report.html", "verdict.json", "package.tar"}
    assert "Not sealed: no signing key was given." in ended.out


@pytest.mark.usefixtures("project")
def test_a_fail_ends_with_1_and_the_next_command(run: Run) -> None:
    ended = run("gate")
    assert ended.code == 1
    assert "repro-gate baseline accept --reason " in ended.out
    assert "error" not in ended.err


def test_the_next_command_runs_in_the_folder_where_this_one_ran(
    project: Project, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("train.py", "play.json", "repro-gate.yml"):
        project.write(f"a project/{name}", (project.path / name).read_text())
    project.commit()
    monkeypatch.chdir(project.path / "a project")
    proposed = run("gate", "--out", "my results")
    (command,) = (line for line in proposed.out.splitlines() if "baseline accept" in line)
    assert run(*shlex.split(command)[1:]).code == 0


def test_an_error_ends_with_3_shows_the_last_lines_and_writes_the_verdict(
    project: Project, run: Run
) -> None:
    project.play(exit=1, says="no such column: label")
    ended = run("gate", "--out", "results")
    assert ended.code == 3
    assert "python3 train.py exited with 1" in ended.err
    assert "no such column: label" in ended.err
    assert "Traceback" not in ended.err
    verdict = json.loads((project.path / "results" / "verdict.json").read_text())
    assert (verdict["outcome"], verdict["passes"]) == ("error", False)
    assert verdict["fault_details"] == ["no such column: label"]


def test_what_an_earlier_call_left_is_not_taken_for_this_ones(project: Project, run: Run) -> None:
    _recorded(project, run)
    run("gate", "--out", "results")
    project.play(exit=1)
    run("gate", "--out", "results")
    assert not (project.path / "results" / "package.tar").exists()
    assert not (project.path / "results" / "proposed-baseline.json").exists()


@pytest.mark.usefixtures("project")
def test_json_is_the_document_and_nothing_else(run: Run) -> None:
    ended = run("gate", "--json")
    assert json.loads(ended.out)["outcome"] == "no-baseline"
    assert ended.err == ""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("", "repro-gate.yml: is empty or not a mapping of keys"),
        ("version: 2\ntrain: {command: x, max_steps: 1}\n", "line 1: version: must be 1"),
        ("version: 1\n", "line 1: train: is required"),
        ("version: 1\ntrain: {command: x, max_steps: 1, colour: red}\n", "train.colour: is not a"),
        ("version: [\n", "repro-gate.yml: not valid YAML"),
    ],
)
def test_settings_that_cannot_be_used_end_with_2(
    project: Project, run: Run, settings: str, message: str
) -> None:
    project.write("repro-gate.yml", settings)
    ended = run("gate")
    assert ended.code == 2
    assert message in ended.err


def test_no_settings_file_ends_with_2_and_says_what_writes_one(project: Project, run: Run) -> None:
    (project.path / "repro-gate.yml").unlink()
    ended = run("gate")
    assert ended.code == 2
    assert ended.err == (
        "error: no repro-gate.yml in this folder or in one above it, up to the repository's root\n"
        "hint: Run `repro-gate init`, which writes one, or name yours: "
        "--config FOLDER/repro-gate.yml.\n"
    )
    assert run("gate", "-c", "other.yml").err == (
        "error: other.yml: no such file\n"
        "hint: Correct the path; `repro-gate init` writes a minimal file at the root.\n"
    )


def test_settings_of_the_root_are_found_from_a_folder_below(
    project: Project, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.path / "deep").mkdir()
    monkeypatch.chdir(project.path / "deep")
    assert run("gate", "-q").code == 1


def test_settings_outside_the_repository_are_refused(
    project: Project, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "repro-gate.yml").write_text((project.path / "repro-gate.yml").read_text())
    ended = run("gate", "-c", "../repro-gate.yml")
    assert ended.code == 2
    assert "is outside the repository" in ended.err


@pytest.mark.usefixtures("project")
def test_outside_a_repository_the_gate_says_so(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run("gate")
    assert ended.code == 2
    assert "is not inside the work tree of a git repository" in ended.err


def test_an_unknown_option_ends_with_2(run: Run) -> None:
    assert run("gate", "--nosuch").code == 2


def test_the_schema_is_printed(run: Run) -> None:
    ended = run("schema")
    assert json.loads(ended.out)["title"] == "repro-gate.yml"


def test_the_module_is_the_same_program(project: Project) -> None:
    done = subprocess.run(
        (sys.executable, "-m", "gate", "gate", "-q"),
        cwd=project.path,
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 1
    assert "repeatable; no baseline yet" in done.stdout


def test_the_action_needs_a_runner(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_EVENT_NAME", "GITHUB_EVENT_PATH"):
        monkeypatch.delenv(name, raising=False)
    ended = run("action")
    assert ended.code == 2
    assert ended.out.startswith("::error title=repro-gate")
    # one stream for all: the runner reads two of them one beside the other
    assert "\n::stop-commands::" in ended.out
    assert ended.err == ""


@pytest.mark.usefixtures("project")
def test_quiet_is_the_result_line_and_nothing_else(run: Run) -> None:
    ended = run("gate", "--quiet")
    assert (ended.code, ended.err) == (1, "")
    assert ended.out == (
        "\N{MEDIUM WHITE CIRCLE} repro-gate repeatable; no baseline yet. Two runs of this commit "
        "are identical. There is no baseline yet to compare them with.\n"
    )


def test_the_comment_bears_the_id_of_its_gate(project: Project, run: Run, tmp_path: Path) -> None:
    project.settings("report: {gate_id: lm-small}\n")
    run("gate", "--out", tmp_path / "out", "-q")
    comment = (tmp_path / "out" / "comment.md").read_text()
    assert comment.startswith("<!-- repro-gate:lm-small -->\n")


@pytest.mark.usefixtures("project")
def test_repeats_below_those_of_the_settings_are_refused(project: Project, run: Run) -> None:
    project.settings("repeats: 3")
    ended = run("gate", "--repeats", "2")
    assert ended.code == 2
    assert "--repeats 2: the settings ask for 3" in ended.err
    assert run("gate", "--repeats", "11").code == 2


@pytest.mark.usefixtures("project")
def test_a_full_disk_below_standard_output_changes_no_verdict(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = run("gate", "-q").code
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        ended = run("gate", "-q")
    assert ended.code == code
    assert "note: standard output cannot be written: No space left on device; the ver" in ended.err
