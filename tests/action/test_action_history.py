"""Earlier runs of the default branch: written there, shown on pull requests, deciding nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from action_scene import Scene

from gate.errors import ExitCode
from gate.verdict.history_lines import HISTORY_BRANCH

SETTINGS = "report: {history: true}\n"
ON_MAIN: Mapping[str, str] = {"GITHUB_EVENT_NAME": "push", "GITHUB_REF": "refs/heads/main"}
PUSH: Mapping[str, object] = {"repository": {"default_branch": "main"}}


def fetch(scene: Scene, files: Mapping[str, str]) -> None:
    """Bring the branch into the clone, as checkout with its whole history does."""
    git = scene.project.git
    head = git("rev-parse", "HEAD")
    git("checkout", "-q", "--orphan", "elsewhere")
    git("rm", "-rqf", ".")
    for name, content in files.items():
        scene.project.write(name, content)
    made = scene.project.commit()
    git("update-ref", f"refs/remotes/origin/{HISTORY_BRANCH}", made)
    git("checkout", "-q", "-f", head)


def test_a_push_writes_a_line_and_the_next_pull_request_shows_it(scene: Scene) -> None:
    scene.base = scene.project.settings(SETTINGS)
    scene.with_baseline()
    assert scene.run(ON_MAIN, event=PUSH) == ExitCode.PASS
    assert f"line added to default.jsonl on the branch {HISTORY_BRANCH}" in scene.said
    files = scene.server.branches.files(HISTORY_BRANCH)
    told = json.loads(files["default.jsonl"])
    assert (told["outcome"], told["last"]) == ("reproduced", "2.125")
    assert told["commit"] == scene.project.git("rev-parse", "HEAD")
    assert json.loads(files["default.badge.json"])["message"] == "reproduced"
    # the same line in a file of its own, which no later line pushes out
    (kept,) = [text for name, text in files.items() if name.startswith("lines/")]
    assert kept == files["default.jsonl"]
    badge = scene.project.path / "repro-gate-out" / "badge.json"
    assert badge.read_text() == files["default.badge.json"]
    fetch(scene, files)
    assert scene.run() == ExitCode.PASS
    assert "Last 1 run on the default branch" in scene.comment
    assert "loss did not move in 1 run" in scene.comment
    # shown, and not sealed in
    assert "did not move" not in (badge.parent / "verdict.json").read_text()


@pytest.mark.parametrize(
    ("changed", "event"),
    [
        ({}, None),
        ({"GITHUB_EVENT_NAME": "merge_group"}, None),
        ({**ON_MAIN, "GITHUB_REF": "refs/heads/topic"}, PUSH),
        (ON_MAIN, {}),
    ],
)
def test_nothing_but_the_default_branch_writes(
    scene: Scene, changed: dict[str, str], event: Mapping[str, object] | None
) -> None:
    scene.base = scene.project.settings(SETTINGS)
    scene.run(changed, event=event)
    assert scene.server.branches.refs == {}


def test_without_the_setting_nothing_is_written(scene: Scene) -> None:
    scene.run(ON_MAIN, event=PUSH)
    assert scene.server.branches.refs == {}


def test_a_token_that_may_not_write_changes_no_verdict(scene: Scene) -> None:
    scene.base = scene.project.settings(SETTINGS)
    scene.with_baseline()
    scene.server.branches.allowed = False
    assert scene.run(ON_MAIN, event=PUSH) == ExitCode.PASS
    (told,) = [
        line for line in scene.said if "title=repro-gate%3A history" in line and "403" in line
    ]
    assert told.startswith("::notice ")
    assert "contents: write" in told


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (None, "no history yet"),
        ({"other.jsonl": "{}"}, "no history of this gate yet"),
        ({"default.jsonl": "::error::x\n{}\n"}, "2 of 2 lines are not readable"),
        ({"default.jsonl": "x" * 900_000}, "the history cannot be read"),
    ],
)
def test_a_history_that_cannot_be_read_is_a_notice(
    scene: Scene, files: dict[str, str] | None, words: str
) -> None:
    scene.base = scene.project.settings(SETTINGS)
    scene.with_baseline()
    if files is not None:
        fetch(scene, files)
    scene.said.clear()
    assert scene.run() == ExitCode.PASS
    assert words in scene.comment.replace("\\", "")
    assert any(line.startswith("::notice ") and words in line for line in scene.said)
