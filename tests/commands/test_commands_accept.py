"""`repro-gate baseline accept` of a proposal that was made elsewhere."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from baseline_cases import forged, only_entry
from command_line import Run, played_once
from fake_github import FakeGitHub
from github_artifacts import archive_of
from played_training import Project

PROPOSED = "proposed-baseline.json"


@pytest.fixture
def github(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGitHub]:
    """A server, whose repository is this clone's origin, and a token for it."""
    project.git("remote", "add", "origin", "https://github.com/o/model.git")
    for name in ("GITHUB_TOKEN", "GITHUB_SERVER_URL", "GITHUB_REPOSITORY"):
        monkeypatch.delenv(name, raising=False)
    with FakeGitHub() as server:
        monkeypatch.setenv("GITHUB_API_URL", server.api_url)
        monkeypatch.setenv("GH_TOKEN", server.token)
        yield server


@pytest.fixture
def artifact(project: Project, run: Run) -> Path:
    """What the gate proposed, as an artifact is unpacked, out of the clone."""
    folder = project.path.parent / "artifact"

    def propose() -> None:
        run("gate", "-q")
        shutil.move(project.path / "repro-gate-out", folder)

    # another origin, or none, is in the clone's own configuration
    played_once(f"proposed-by-command-{project.git('remote')}", project, propose)
    return folder


def committed(project: Project) -> dict[str, str]:
    text = only_entry(project.path).read_text()
    entry = json.loads(text)
    return {"commit": entry["commit"], "reason": entry["reason"]}


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("named", [".", PROPOSED])
def test_a_downloaded_artifact_is_accepted(
    project: Project, run: Run, artifact: Path, named: str
) -> None:
    ended = run("baseline", "accept", "--from", artifact / named, "--reason", "new data")
    assert (ended.code, ended.err) == (0, "")
    head = project.git("rev-parse", "HEAD")
    assert committed(project) == {"commit": head, "reason": "new data"}
    project.commit()
    assert run("gate", "-q").code == 0


def test_accepting_says_that_a_resume_that_differs_stays(
    project: Project, run: Run, artifact: Path
) -> None:
    verdict = artifact / "verdict.json"
    text = verdict.read_text()
    verdict.write_text(text.replace('"outcome": "no-baseline"', '"outcome": "resume-differs"', 1))
    assert verdict.read_text() != text
    ended = run("baseline", "accept", "--from", artifact, "--reason", "new data")
    assert (ended.code, committed(project)["reason"]) == (0, "new data")
    assert ended.err == (
        "note: the gate's outcome was resume-differs. Accepting this result does not fix the "
        "resume: each gate call that resumes a run fails until it is fixed.\n"
    )
    verdict.write_text("{")
    assert run("baseline", "accept", "--from", artifact, "--reason", "again").err == ""


def test_the_archive_of_a_browser_is_accepted_too(
    project: Project, run: Run, artifact: Path
) -> None:
    content = (artifact / PROPOSED).read_bytes()
    archive = project.path.parent / "repro-gate.zip"
    # an artifact of several paths keeps the folder
    archive.write_bytes(archive_of({"../../repro-gate-out/proposed-baseline.json": content}))
    ended = run("baseline", "accept", "--from", archive, "--reason", "new data")
    assert (ended.code, ended.err) == (0, "")
    assert committed(project)["reason"] == "new data"
    assert not list(project.path.parent.glob("**/repro-gate-out"))


def test_a_run_is_accepted_by_its_number(
    project: Project, run: Run, artifact: Path, github: FakeGitHub
) -> None:
    github.add_artifact(archive_of({PROPOSED: (artifact / PROPOSED).read_bytes()}))
    ended = run("baseline", "accept", "--run", "4711", "--reason", "new data")
    assert (ended.code, ended.err) == (0, "")
    assert committed(project)["reason"] == "new data"
    assert project.git("status", "--porcelain") == "?? .repro-gate/"
    store = github.requests[-1]
    assert github.token not in str(store)


def test_what_would_change_is_shown_and_without_a_reason_nothing_is_written(
    project: Project, run: Run, artifact: Path
) -> None:
    assert run("baseline", "accept", "--from", artifact, "--reason", "first").code == 0
    old = project.commit()
    project.play(losses=["2.5", "2.25", "1.75"])
    head = project.commit()
    run("gate", "-q", "--out", "../new")
    ended = run("baseline", "accept", "--from", "../new")
    assert ended.code == 2
    assert "accept needs --reason" in ended.err
    shown = flat(ended.out)
    before = project.git("rev-parse", f"{old}^")
    assert f"Commit {before[:12]} {head[:12]}" in shown
    assert "Last loss 2.125 1.75" in shown
    assert "Moved loss at step 3: 2.125 → 1.75, moved by 17.6 % (no tolerance); weights " in shown
    assert "(the gate's outcome: code-drift)" in shown
    assert "2 identical runs (a 1-in-10 fault is missed 82 % of" in shown
    assert re.search(r"Environment \S.*torch.* \S", shown) or "Environment cpu" in shown
    assert committed(project)["reason"] == "first"


def test_an_entry_says_who_accepted_it_and_out_of_which_package(
    project: Project, run: Run, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_ACTOR", "\x1b[31mme\u202e" + "e" * 200)
    assert run("baseline", "accept", "--from", artifact, "--reason", "first").code == 0
    entry = json.loads(only_entry(project.path).read_text())
    assert entry["accepted_by"] == "m" + "e" * 99
    package = (artifact / "package.tar").read_bytes()
    assert entry["package_sha256"] == hashlib.sha256(package).hexdigest()
    shown = flat(run("baseline", "show").out)
    assert entry["package_sha256"][:12] in shown


def test_a_proposal_that_rests_on_too_few_runs_is_refused(
    project: Project, run: Run, artifact: Path
) -> None:
    project.settings("baseline: {record_repeats: 3}")
    ended = run("baseline", "accept", "--from", artifact, "--reason", "first")
    assert ended.code == 3
    assert "it rests on 2 equal runs, and baseline.record_repeats asks for 3" in ended.err
    assert "repro-gate gate --repeats 3" in flat(ended.err)
    assert not (project.path / ".repro-gate").exists()


def test_a_proposal_of_an_unknown_commit_is_refused(run: Run, artifact: Path) -> None:
    path = artifact / PROPOSED
    told = json.loads(path.read_text())
    for commit in ("f" * 40, "HEAD", "--output=x", "\x1b]0;title\x07"):
        told["commit"] = commit
        path.write_text(forged(json.dumps(told)))
        ended = run("baseline", "accept", "--from", path, "--reason", "x")
        assert ended.code == 3
        assert "which this clone does not have" in ended.err
        assert "\x1b" not in ended.err + ended.out


def test_a_proposal_under_other_settings_is_refused(
    project: Project, run: Run, artifact: Path
) -> None:
    project.settings("determinism: {threads: 2}")
    project.commit()
    ended = run("baseline", "accept", "--from", artifact, "--reason", "x")
    assert ended.code == 3
    assert "under other settings of the training than repro-gate.yml has here" in ended.err
    assert "determinism.threads: 1 instead of 2" in ended.err


def test_a_proposal_of_another_gate_of_the_same_command_is_refused(
    project: Project, run: Run
) -> None:
    text = (project.path / "repro-gate.yml").read_text()
    project.write("other.yml", f"{text.rstrip()}\nreport: {{gate_id: other}}\n")
    project.commit()
    run("gate", "-q", "--config", "other.yml")
    ended = run("baseline", "accept", "--reason", "mine")
    assert ended.code == 3
    assert "it was recorded by gate other, and repro-gate.yml is that of a gate without an id" in (
        flat(ended.err)
    )
    assert not (project.path / ".repro-gate").exists()
    assert run("baseline", "accept", "--config", "other.yml", "--reason", "first").code == 0
    assert json.loads(only_entry(project.path).read_text())["gate_id"] == "other"


def test_text_of_a_proposal_shows_as_itself(run: Run, artifact: Path) -> None:
    path = artifact / PROPOSED
    told = json.loads(path.read_text())
    told["environment"]["parts"]["device"] = "\x1b[2J[bold]cpu\u202e"
    path.write_text(forged(json.dumps(told)))
    ended = run("baseline", "accept", "--from", path, "--reason", "x")
    assert ended.code == 0
    assert "[bold]cpu" in ended.out
    assert "\x1b" not in ended.out
    assert "\u202e" not in ended.out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "proposed-baseline.json"),
        (b"{", "proposed-baseline.json"),
        (b"[" * 100_000, "proposed-baseline.json"),
        (b'{"schema_version": "repro-gate.baseline/1", "entries": []}', "repro-gate.baseline/1"),
    ],
)
def test_a_broken_proposal_is_told(run: Run, artifact: Path, content: bytes, message: str) -> None:
    (artifact / PROPOSED).write_bytes(content)
    ended = run("baseline", "accept", "--from", artifact, "--reason", "x")
    assert ended.code in {2, 3}
    assert ended.err.startswith("error: ")
    assert message in ended.err


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"verdict.json": b"{}"}, "holds no proposed-baseline.json"),
        ({f"a/{PROPOSED}": b"{}", f"b/{PROPOSED}": b"{}"}, "holds 2 files called"),
        ({PROPOSED: b" " * (9 * 1024**2)}, "is larger than 8 MiB"),
    ],
)
def test_an_archive_without_one_proposal_is_told(
    run: Run, github: FakeGitHub, members: dict[str, bytes], message: str
) -> None:
    github.add_artifact(archive_of(members))
    ended = run("baseline", "accept", "--run", "4711", "--reason", "x")
    assert ended.code == 3
    assert f"artifact repro-gate of run 4711: {message}" in ended.err.replace(
        "the baseline in it is", "is"
    )
    assert "hint: " in ended.err


def test_what_is_no_archive_is_told(project: Project, run: Run, github: FakeGitHub) -> None:
    github.add_artifact(b"<html>no archive</html>")
    ended = run("baseline", "accept", "--run", "4711", "--reason", "x")
    assert (ended.code, "not a readable zip archive" in ended.err) == (3, True)
    assert not list(project.path.glob(".repro-gate-head-*"))


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("--from", "a", "--run", "1"), "--from and --run exclude each other", "Name one"),
        (("--artifact", "a"), "--artifact needs --run", "--from"),
        (("--from", "nowhere"), "no such file", "the artifact's folder"),
        (("--run", "main"), "neither a run's number nor its URL", "actions/runs/NUMBER"),
        (("--run", "4711"), "no remote `origin`", "--from"),
    ],
)
def test_what_cannot_be_meant_is_told(
    run: Run, words: tuple[str, ...], message: str, hint: str
) -> None:
    ended = run("baseline", "accept", *words, "--reason", "x")
    assert ended.code in {2, 3}
    assert message in ended.err
    assert hint in ended.err.partition("hint: ")[2]


def test_a_run_needs_a_token(run: Run, github: FakeGitHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GH_TOKEN")
    ended = run("baseline", "accept", "--run", "4711", "--reason", "x")
    assert (ended.code, "GH_TOKEN is not set" in ended.err) == (2, True)
    assert github.requests == ()
