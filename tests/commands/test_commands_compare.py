"""The command `compare`: what a person types, sees and finds in the folder."""

from __future__ import annotations

import json

import pytest
from command_line import Run
from played_training import Project

from gate.comparison.measurements import ComparedCommits

LOSSES = [str(2.5 - step / 64) for step in range(8)]


def test_compare_shows_the_answer_and_writes_document_and_page(project: Project, run: Run) -> None:
    project.play(losses=LOSSES)
    project.play(losses=[*LOSSES[:-1], "2.0"])
    ended = run("compare", "--base", "HEAD~1", "--runs", "2", "-q", "--out", "results")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("Base and head are apart.\n")
    assert "compare.html, compare.json, evidence" in ended.out
    results = project.path / "results"
    document = ComparedCommits.model_validate_json((results / "compare.json").read_text())
    assert document.base.name == "HEAD~1"
    assert "<h1>Base and head are apart.</h1>" in (results / "compare.html").read_text()


def test_json_is_the_document_alone(project: Project, run: Run) -> None:
    project.play(losses=LOSSES)
    project.play(losses=LOSSES, says="again")
    ended = run("compare", "--base", "HEAD~1", "--runs", "2", "--json")
    document = json.loads(ended.out)
    assert (document["schema_version"], document["closeness"]) == ("repro-gate.compare/1", "equal")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--base", "HEAD"), "error: --base HEAD is the commit itself, "),
        (("--base", "nowhere"), "error: there is no commit 'nowhere' in this repository"),
        (("--base", ""), "error: --base names no commit"),
        (("--base", "HEAD~1", "--runs", "3"), "error: --runs 3: an odd number"),
        (("--base", "HEAD~1", "--runs", "1"), "--runs"),
        ((), "error: compare takes one of --base, --arm and --print"),
        (("--base", "HEAD~1", "--seeds", "3"), "error: --seeds goes with --arm"),
    ],
)
def test_what_cannot_be_compared_ends_with_2_and_one_message(
    project: Project, run: Run, words: tuple[str, ...], said: str
) -> None:
    project.play(losses=LOSSES)
    ended = run("compare", *words)
    assert ended.code == 2
    assert said in ended.err
    assert "Traceback" not in ended.err


def test_a_base_that_fails_ends_with_3(project: Project, run: Run) -> None:
    project.play(exit=3)
    project.play()
    ended = run("compare", "--base", "HEAD~1", "-q")
    assert ended.code == 3
    assert "error: the base commit (HEAD~1): run base-1: python3 train.py exited" in ended.err


def test_the_schema_of_the_document_is_printed(run: Run) -> None:
    schema = json.loads(run("schema", "compare").out)
    assert schema["title"] == "compare.json"
    assert schema["properties"]["schema_version"]["const"] == "repro-gate.compare/1"
    assert json.loads(run("schema").out)["title"] == "repro-gate.yml"
