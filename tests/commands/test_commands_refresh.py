"""`repro-gate baseline refresh`: many proposals, one table, one question."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from baseline_cases import FOLDER
from command_line import Ended, Run, played_once, record
from fake_github import FakeGitHub
from github_artifacts import archive_of
from played_training import SETTINGS, Project

PROPOSED = "proposed-baseline.json"
NEAR = ["2.5", "2.25", "2.1250001"]
FAR = ["2.5", "2.25", "2.0"]
UNPRICED = "cost: {when: never}\n"


@pytest.fixture
def fetched(project: Project, run: Run) -> Path:
    """Three proposals beside a committed baseline: a new driver, the same bits there, and code."""
    folder = project.path.parent / "fetched"

    def propose() -> None:
        project.settings(UNPRICED + "compare: {tolerances: [{metric: loss, relative: 0.001}]}\n")
        record(project, run)
        project.commit()
        for name, play in (
            ("moved", {"losses": NEAR, "environment": {"driver": "580"}}),
            ("equal", {"environment": {"driver": "590"}}),
            ("code", {"losses": FAR}),
        ):
            project.play(**play)
            run("gate", "-q", "--out", folder / "4711" / name)

    played_once("three-proposals", project, propose)
    return folder


@pytest.fixture
def github(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGitHub]:
    project.git("remote", "add", "origin", "https://github.com/o/model.git")
    for name in ("GITHUB_TOKEN", "GITHUB_SERVER_URL", "GITHUB_REPOSITORY"):
        monkeypatch.delenv(name, raising=False)
    with FakeGitHub() as server:
        monkeypatch.setenv("GITHUB_API_URL", server.api_url)
        monkeypatch.setenv("GH_TOKEN", server.token)
        yield server


def refresh(run: Run, *words: str | Path) -> Ended:
    return run("baseline", "refresh", *words, "--reason", "driver 580")


def states(text: str) -> dict[str, str]:
    return {row["source"].split("/")[-2]: row["state"] for row in json.loads(text)["rows"]}


def entries(project: Project) -> list[dict[str, object]]:
    paths = sorted((project.path / FOLDER).iterdir())
    return [json.loads(path.read_text()) for path in paths]


def test_what_the_environment_moved_is_written_and_what_code_moved_is_refused(
    project: Project, run: Run, fetched: Path
) -> None:
    ended = refresh(run, "--from", fetched, "--yes", "--json")
    assert ended.code == 1, ended.err
    assert states(ended.out) == {
        "moved": "moved with its environment",
        "equal": "equal in its new environment",
        "code": "refused",
    }
    rows = {row["source"].split("/")[1]: row for row in json.loads(ended.out)["rows"]}
    assert rows["code"]["why"] == "the result moved, and its environment did not"
    assert rows["moved"]["changed"] == ["driver"]
    multiple = rows["moved"]["movement"]["tolerances"]
    assert multiple == pytest.approx(1e-7 / 2.125 / 0.001, rel=0.01)
    assert rows["moved"]["score"] == pytest.approx(100 / (1 + multiple))
    assert rows["equal"]["score"] == 100
    assert sorted(str(one["reason"]) for one in entries(project)) == [
        "",
        "driver 580",
        "driver 580",
    ]
    page = (project.path / "repro-gate-refresh" / "refresh.md").read_text()
    assert "1 refused" in page
    assert page.count(f"written: {FOLDER}/") == 2
    # the folder of the table is none of what is committed
    assert {line[:3] for line in project.git("status", "--porcelain").splitlines()} == {"?? "}


def test_nothing_is_written_without_a_reason_or_somebody_to_ask(
    project: Project, run: Run, fetched: Path
) -> None:
    before = entries(project)
    ended = run("baseline", "refresh", "--from", fetched, "--yes")
    assert (ended.code, "refresh needs --reason" in ended.err) == (2, True)
    ended = refresh(run, "--from", fetched)
    assert ended.code == 2
    assert "nothing was written: 2 proposals to accept, and no terminal to ask" in ended.err
    # what would be written has been shown
    assert "3 proposals: 1 moved with its environment" in " ".join(ended.out.split())
    assert entries(project) == before


def test_noise_is_what_other_environments_are_apart(
    project: Project, run: Run, fetched: Path
) -> None:
    shutil.rmtree(fetched / "4711" / "code")
    shutil.rmtree(fetched / "4711" / "equal")
    assert refresh(run, "--from", fetched, "--yes").code == 0
    project.commit()
    project.play(losses=["2.5", "2.25", "2.1250003"], environment={"driver": "600"})
    run("gate", "-q", "--out", fetched / "4712" / "later")
    ended = refresh(run, "--from", fetched / "4712", "--yes", "--json")
    (row,) = json.loads(ended.out)["rows"]
    # two entries are 1e-7 apart; it is 2e-7 or 3e-7 from the nearest
    assert row["noise"] == pytest.approx(abs(2.1250003 - float(row["movement"]["before"])) / 1e-7)


def test_two_results_of_one_commit_and_environment_are_refused_and_an_older_one_gives_way(
    run: Run, project: Project, fetched: Path
) -> None:
    shutil.rmtree(fetched / "4711" / "code")
    shutil.rmtree(fetched / "4711" / "equal")
    shutil.copytree(fetched / "4711" / "moved", fetched / "4712" / "again")
    ended = refresh(run, "--from", fetched, "--json", "--yes")
    assert ended.code == 0, ended.err
    assert sorted(states(ended.out).values()) == [
        "moved with its environment",
        "older than another",
    ]
    assert len(entries(project)) == 2


def test_proposals_of_several_runs_and_artifacts_are_downloaded(
    project: Project, run: Run, fetched: Path, github: FakeGitHub
) -> None:
    for number, name in ((4711, "moved"), (4712, "equal")):
        data = (fetched / "4711" / name / PROPOSED).read_bytes()
        github.add_artifact(archive_of({PROPOSED: data}), run=number, name=f"repro-gate-{name}")
    github.add_artifact(archive_of({"log.txt": b""}), run=4711, name="logs")
    github.add_artifact(b"<html>no archive</html>", run=4712, name="repro-gate-broken")
    ended = refresh(run, "--runs", "4711, 4712,4713", "--yes", "--json")
    assert ended.code == 1, ended.err
    told = {row["source"]: row["state"] for row in json.loads(ended.out)["rows"]}
    assert told == {
        "run 4711, repro-gate-moved": "moved with its environment",
        "run 4712, repro-gate-equal": "equal in its new environment",
        "run 4712, repro-gate-broken": "refused",
        "run 4713": "refused",
    }
    assert len(entries(project)) == 3


def test_the_failed_runs_of_a_workflow_are_found_by_its_name(
    project: Project, run: Run, fetched: Path, github: FakeGitHub
) -> None:
    data = (fetched / "4711" / "moved" / PROPOSED).read_bytes()
    github.add_artifact(archive_of({PROPOSED: data}), run=88)
    github.artifacts.failed = {".github/workflows/nightly.yml": (88,)}
    ended = refresh(run, "--workflow", "nightly.yml", "--failed", "--yes")
    assert ended.code == 0, ended.err
    assert len(entries(project)) == 2
    ended = refresh(run, "--workflow", "weekly.yml", "--failed", "--yes")
    assert (ended.code, "has no workflow 'weekly.yml'" in ended.err) == (3, True)


def test_a_gate_of_other_settings_is_found_by_its_settings_file(
    project: Project, run: Run, fetched: Path
) -> None:
    shutil.rmtree(fetched)
    text = SETTINGS.replace("max_steps: 3", "max_steps: 3\n  seed: 7")
    project.write("sub/repro-gate.yml", f"{text}{UNPRICED}report: {{gate_id: sub}}\n")
    shutil.copy(project.path / "train.py", project.path / "sub" / "train.py")
    shutil.copy(project.path / "play.json", project.path / "sub" / "play.json")
    project.commit()
    run("gate", "-q", "--config", "sub/repro-gate.yml", "--out", fetched / "1" / "sub")
    ended = refresh(run, "--from", fetched, "--config", "repro-gate.yml", "--json")
    (row,) = json.loads(ended.out)["rows"]
    assert row["why"] == "no gate trains this under these settings: repro-gate.yml"
    ended = refresh(run, "--from", fetched, "--yes", "--json")
    (row,) = json.loads(ended.out)["rows"]
    assert (row["state"], row["gate"], row["config"]) == (
        "first entry",
        "sub",
        "sub/repro-gate.yml",
    )
    assert len(list((project.path / "sub" / FOLDER).iterdir())) == 1


def test_the_workflow_that_init_writes_is_no_settings_file(
    project: Project, run: Run, fetched: Path
) -> None:
    project.write(".github/workflows/repro-gate.yml", "name: repro-gate\non: [pull_request]\n")
    project.commit()
    ended = refresh(run, "--from", fetched, "--yes", "--json")
    assert "a key must be text" not in ended.err
    assert states(ended.out)["moved"] == "moved with its environment"


@pytest.mark.parametrize("spoil", ["empty", "foreign", "link", "future"])
def test_a_proposal_that_cannot_be_used_is_a_row_and_no_end(
    run: Run, fetched: Path, spoil: str
) -> None:
    path = fetched / "4711" / "code" / PROPOSED
    told = json.loads(path.read_text())
    path.unlink()
    if spoil == "link":
        path.symlink_to(fetched / "4711" / "moved" / PROPOSED)
    else:
        told["recorded_at"] = "2999-01-01T00:00:00+00:00" if spoil == "future" else "x"
        path.write_text({"empty": "", "foreign": '{"a": 1}'}.get(spoil, json.dumps(told)))
    ended = refresh(run, "--from", fetched, "--yes", "--json")
    assert ended.code == 1
    assert states(ended.out)["code"] == "refused"
    assert states(ended.out)["moved"] == "moved with its environment"


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "refresh takes one of --runs, --workflow and --from"),
        (("--runs", "1", "--from", "x"), "refresh takes one of --runs, --workflow and --from"),
        (("--workflow", "nightly.yml"), "--workflow and --failed need each other"),
        (("--from", "nowhere"), "no such folder"),
        (("--from", "."), "0 files called proposed-baseline.json"),
        (("--runs", "main"), "neither a run's number nor its URL"),
    ],
)
def test_what_cannot_be_meant_is_refused(run: Run, words: tuple[str, ...], message: str) -> None:
    ended = refresh(run, *words)
    assert ended.code in {2, 3}
    assert message in ended.err
