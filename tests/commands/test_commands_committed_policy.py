from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Ended, Run, record
from played_training import Project

IGNORED = "ignored"
EXCLUDED = "excluded"
ASSUMED = "--assume-unchanged"
SKIPPED = "--skip-worktree"
TOLERANT = "compare: {tolerances: [{metric: '*', absolute: 100}]}\n"


def _hidden(project: Project, path: str, way: str) -> None:
    """Keep what lies at a path from `git status`."""
    if way == IGNORED:
        project.write(".gitignore", f"{path}\n")
        project.commit()
    elif way == EXCLUDED:
        project.write(".git/info/exclude", f"{path}\n")
    else:
        project.git("update-index", way, path)


def _gate(run: Run, tmp_path: Path, *words: str) -> Ended:
    return run("gate", "-q", "--out", tmp_path / "out", *words)


@pytest.mark.parametrize("way", [IGNORED, EXCLUDED])
def test_a_baseline_that_git_ignores_judges_nothing(
    project: Project, run: Run, tmp_path: Path, way: str
) -> None:
    record(project, run)
    _hidden(project, ".repro-gate/", way)
    ended = _gate(run, tmp_path)
    head = project.git("rev-parse", "HEAD")[:12]
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(
        f"error: the baseline (.repro-gate/baseline) differs from commit {head}: the gate judges "
        "only by what is committed\n"
    )
    assert "hint: `git add -f .repro-gate && git commit -m Baseline`." in ended.err
    rows = {row["name"]: row for row in json.loads(run("doctor", "--json").out)["examined"]}
    assert rows["policy"]["health"] == "fail"
    assert rows["policy"]["fix"].startswith("`git add -f .repro-gate && git commit -m Baseline`")
    project.git("add", "-f", ".repro-gate")
    project.git("commit", "-qm", "Baseline")
    assert _gate(run, tmp_path).code == 0


@pytest.mark.parametrize("words", [(), ("--commit", "HEAD")])
@pytest.mark.parametrize("way", [ASSUMED, SKIPPED])
def test_settings_that_git_was_told_to_overlook_judge_nothing(
    project: Project, run: Run, tmp_path: Path, way: str, words: tuple[str, ...]
) -> None:
    _hidden(project, "repro-gate.yml", way)
    settings = project.path / "repro-gate.yml"
    settings.write_text(settings.read_text() + TOLERANT)
    ended = _gate(run, tmp_path, *words)
    assert ended.code == 2
    assert "the settings file (repro-gate.yml) differs from commit " in ended.err
    assert "git update-index --no-assume-unchanged --no-skip-worktree FILE" in ended.err
    assert not (tmp_path / "out" / "verdict.json").exists()


def test_a_baseline_that_a_sparse_checkout_leaves_out_is_brought_back(
    project: Project, run: Run, tmp_path: Path
) -> None:
    project.write("other/x", "x")
    project.commit()
    record(project, run)
    project.commit("Baseline")
    project.git("sparse-checkout", "set", "other")
    ended = _gate(run, tmp_path)
    # `git add` would commit here that the baseline is gone
    assert ended.err.splitlines()[-1] == (
        "hint: This work tree is sparse, and the files are not in it: "
        "`git sparse-checkout add .repro-gate/baseline`."
    )
    project.git("sparse-checkout", "add", ".repro-gate/baseline")
    assert _gate(run, tmp_path).code == 0


def test_what_no_commit_has_is_a_change_of_a_call_that_allows_them(
    project: Project, run: Run, tmp_path: Path
) -> None:
    record(project, run)
    _hidden(project, ".repro-gate/", EXCLUDED)
    assert _gate(run, tmp_path, "--allow-dirty").code == 0
    verdict = json.loads((tmp_path / "out" / "verdict.json").read_text())
    assert [name.rpartition("/")[0] for name in verdict["changed_files"]] == [
        ".repro-gate/baseline"
    ]


def test_other_line_ends_of_a_checkout_are_no_other_policy(
    project: Project, run: Run, tmp_path: Path
) -> None:
    record(project, run)
    project.write(".gitattributes", "* text eol=crlf\n")
    project.commit()
    for path in (project.path / ".repro-gate").rglob("*.json"):
        path.unlink()
    project.git("checkout", "-q", "--", ".repro-gate")
    (entry,) = (project.path / ".repro-gate" / "baseline").iterdir()
    assert b"\r\n" in entry.read_bytes()
    assert _gate(run, tmp_path).code == 0
