"""`mode: link`: the step after the upload adds the page's address to this run's comment."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from action_scene import EMPTY, Scene
from each_row import each_row

from gate.errors import ExitCode

SERVER = "https://github.com"
RUN = f"{SERVER}/o/model/actions/runs/4711"
PAGE = f"{RUN}/artifacts/88"
JOB = {"GITHUB_SERVER_URL": SERVER, "GITHUB_RUN_ID": "4711"}


def link(
    scene: Scene, page: str = PAGE, inputs: Mapping[str, str] = EMPTY, *, fork: bool = False
) -> str:
    """What the step says; whatever it is, the check stays as it was."""
    scene.said.clear()
    given = {**JOB, "INPUT_MODE": "link", "INPUT_PAGE_URL": page, **inputs}
    assert scene.run(given, fork=fork) == ExitCode.PASS
    return "\n".join(scene.said)


def test_the_page_is_one_click_from_the_comment_and_nothing_else_changes(scene: Scene) -> None:
    scene.run(JOB)
    before = scene.comment
    (scene.folder / "output").write_text("")
    (scene.folder / "summary").write_text("")
    assert "page linked, comment updated: " in link(scene)
    this_run = f" · [this run]({RUN})"
    linked = before.replace(this_run, f"{this_run} · [its page]({PAGE})")
    assert scene.comment == linked != before
    assert (scene.folder / "output").read_text() == (scene.folder / "summary").read_text() == ""
    assert not scene.statuses()
    # a step that is run again says the same, or the address of a new upload
    assert "comment unchanged" in link(scene)
    assert "comment updated" in link(scene, f"{RUN}/artifacts/89")
    assert scene.comment == linked.replace("/88)", "/89)")


@each_row(
    ("page", "words"),
    [
        ("", "input page_url is empty: no page was uploaded"),
        ("https://elsewhere.example/actions/runs/4711/artifacts/88", "is not the address of an"),
        (f"{SERVER}/o/model/actions/runs/47/artifacts/88", "is not the address of an artifact of"),
        (f"{RUN}/artifacts/88)[x](https://elsewhere.example", "is not the address of an artifact"),
        (f"{RUN}/artifacts/88\n", "page linked"),
        (f"{RUN}1/artifacts/88", "is not the address of an artifact of"),
    ],
)
def test_only_an_artifact_of_this_run_is_linked(scene: Scene, page: str, words: str) -> None:
    scene.run(JOB)
    assert words in link(scene, page)


def test_a_comment_of_another_run_stays_as_it_is(scene: Scene) -> None:
    scene.run({**JOB, "GITHUB_RUN_ID": "4710"})
    before = scene.comment
    assert "not linked: this run wrote no comment" in link(scene)
    assert scene.comment == before


def test_of_several_gates_in_one_run_the_one_with_the_id_gets_its_page(scene: Scene) -> None:
    for gate_id in ("a100", "h100"):
        scene.run({**JOB, "INPUT_GATE_ID": gate_id})
    assert "this run wrote 2 comments: give gate_id" in link(scene)
    assert "page linked" in link(scene, inputs={"INPUT_GATE_ID": "h100"})
    assert [PAGE in comment.body for comment in scene.server.comments] == [False, True]


def test_a_comment_that_somebody_else_copied_is_not_edited(scene: Scene) -> None:
    scene.run(JOB)
    (ours,) = scene.server.comments
    copied = scene.server.add(ours.body, author="mallory")
    assert "page linked" in link(scene)
    assert PAGE in ours.body
    assert PAGE not in copied.body


@pytest.mark.parametrize("inputs", [{"INPUT_TOKEN": ""}, {"INPUT_COMMENT": "false"}])
def test_without_a_token_or_a_comment_nothing_is_asked(
    scene: Scene, inputs: dict[str, str]
) -> None:
    requests = len(scene.server.requests)
    assert "not linked: " in link(scene, inputs=inputs)
    assert len(scene.server.requests) == requests


def test_a_forks_job_does_not_use_its_token(scene: Scene) -> None:
    requests = len(scene.server.requests)
    assert "a fork's code ran in this job" in link(scene, fork=True)
    assert len(scene.server.requests) == requests


def test_a_server_that_fails_is_said_and_keeps_the_comment(scene: Scene) -> None:
    scene.run(JOB)
    before = scene.comment
    assert "not linked: " in link(scene, inputs={"INPUT_TOKEN": "expired"})
    assert scene.comment == before
