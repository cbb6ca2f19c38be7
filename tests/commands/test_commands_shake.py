"""The command `shake`: what a person types, sees and finds in the folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Run
from shaken_training import Shaken

from gate.comparison.measurements import ShakenTraining
from gate.settings.variations import BY_NAME

HOST = "import socket\ndef amount(): return socket.gethostname()\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shaken:
    made = Shaken(tmp_path / "project")
    monkeypatch.chdir(made.path)
    return made


def test_shake_shows_what_the_result_hangs_on_and_writes_two_files(
    project: Shaken, run: Run
) -> None:
    project.hangs_on(HOST)
    ended = run("shake", "--only", "host-name,umask,gpu-index", "-q", "--out", "results")
    assert (ended.code, ended.err) == (1, "")
    lines = ended.out.splitlines()
    assert " ".join(lines[:2]) == (
        "The result depends on 1 of the 2 things that were varied: host-name. 1 was not tried."
    )
    assert max(map(len, lines)) <= 80
    (row,) = [line for line in lines if line.startswith("  host-name ")]
    assert (
        " ".join(row.split())
        == "host-name DIFFERS from step 3 on: loss depends.py:2 socket.gethostname"
    )
    assert "socket.gethostname" in ended.out
    assert "host-name: Keep the host's name out of seeds, splits and file names." in ended.out
    document = ShakenTraining.model_validate_json(Path("results/shake.json").read_text())
    assert [thing.name for thing in document.dependent] == ["host-name"]
    assert Path("results/shake.md").read_text().startswith("### What the result depends on\n")


def test_a_result_that_hangs_on_nothing_ends_with_0(project: Shaken, run: Run) -> None:
    ended = run("shake", "--only", "umask", "--json", "--out", str(project.path / "results"))
    document = json.loads(ended.out)
    assert (ended.code, document["schema_version"]) == (0, "repro-gate.shake/1")
    assert [thing["result"] for thing in document["things"]] == ["equal"]


def test_a_training_that_does_not_repeat_ends_with_1(project: Shaken, run: Run) -> None:
    project.hangs_on("import os\ndef amount(): return os.urandom(8)\n")
    ended = run("shake", "-q")
    assert ended.code == 1
    assert "Run `repro-gate gate`: its diagnosis says where they diverge, and why." in ended.out


def test_where_nothing_could_be_tried_it_ends_with_3(project: Shaken, run: Run) -> None:
    ended = run("shake", "--only", "gpu-index", "-q", "--out", str(project.path / "results"))
    assert ended.code == 3
    assert ended.out.startswith("Nothing could be tried, so nothing is known.\n")


def test_the_list_needs_no_settings(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run("shake", "--list")
    assert (ended.code, ended.err) == (0, "")
    assert max(map(len, ended.out.splitlines())) <= 80
    assert [name for name in BY_NAME if f"\n  {name} " not in ended.out] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--only", "clok"), "error: --only clok: there is no such variation\nhint: Did you mean"),
        (("--only", "clock", "--skip", "umask"), "error: --only and --skip cannot be combined"),
        (("--budget", "0"), "error: --budget 0: must be more than 0 seconds"),
        (("--budget", "soon"), "--budget"),
        (("--config", "none.yml"), "none.yml"),
    ],
)
def test_what_cannot_be_done_ends_with_2_and_one_message(
    project: Shaken, run: Run, words: tuple[str, ...], said: str
) -> None:
    ended = run("shake", *words, "--out", str(project.path / "results"))
    assert ended.code == 2
    assert said in ended.err
    assert ended.err.count("error") == 1 or "Error" in ended.err
    assert "Traceback" not in ended.err


def test_the_schema_of_the_document_is_printed(run: Run) -> None:
    schema = json.loads(run("schema", "shake").out)
    assert schema["title"] == "shake.json"
    assert schema["properties"]["schema_version"]["const"] == "repro-gate.shake/1"
