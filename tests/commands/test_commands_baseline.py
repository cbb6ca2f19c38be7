from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from baseline_cases import forged, only_entry
from command_line import Run
from played_training import Project

from gate.commands.baseline_writing import PLACEHOLDERS
from gate.verdict import next_step


def test_record_writes_the_file_and_says_what_to_do_with_it(project: Project, run: Run) -> None:
    ended = run("baseline", "record", "--reason", "first")
    assert ended.code == 0
    assert "Commit the folder: the gate judges by what is committed." in ended.out
    text = only_entry(project.path).read_text()
    assert json.loads(text)["reason"] == "first"


@pytest.mark.slow
def test_record_prices_the_knobs_and_the_comment_tells_them(project: Project, run: Run) -> None:
    project.play(
        losses=[str(2.5 - step / 64) for step in range(8)],
        knob_seconds={"deterministic_algorithms": 0.01},
    )
    project.settings("cost: {rounds: 3, warmup_steps: 1, min_steps: 4}")
    assert run("baseline", "record", "--attribute", "-q").code == 0
    project.commit()
    assert run("gate", "-q", "--out", "first").code == 0
    said = (project.path / "first" / "summary.md").read_text()
    assert r"| Cost by knob | deterministic\_algorithms +10.0 % \[" in said


def test_a_measurement_that_fails_costs_no_recording(project: Project, run: Run) -> None:
    project.play(default={"exit": 3})
    ended = run("baseline", "record", "--attribute", "-q")
    assert ended.code == 3
    assert "exited with 3" in ended.err
    assert only_entry(project.path).is_file()


def test_record_refuses_a_run_that_does_not_repeat(project: Project, run: Run) -> None:
    project.play(random=True)
    ended = run("baseline", "record")
    assert ended.code == 3
    assert "not recorded: the strict runs are not equal" in ended.err
    assert not (project.path / ".repro-gate").exists()


def test_recording_a_result_far_from_other_machines_says_that_it_judges_nothing_yet(
    project: Project, run: Run
) -> None:
    run("baseline", "record", "--reason", "first", "-q")
    project.play(losses=["9.5", "2.25", "2.125"], environment={"torch": "2.14.0"})
    ended = run("baseline", "record", "--reason", "torch 2.14", "-q")
    assert ended.code == 0
    assert (
        "(loss at step 1 is 9.5, and the other has 2.5), and is ignored until another" in ended.err
    )
    shown = " ".join(run("baseline", "show", "--json").out.split())
    assert '"recordings": 1' in shown


def test_accept_takes_what_the_gate_proposed(project: Project, run: Run) -> None:
    run("gate", "-q")
    assert run("baseline", "accept", "--reason", "new data").code == 0
    project.commit()
    assert run("gate", "-q").code == 0


def test_accept_without_a_reason_shows_what_the_gate_proposed_and_writes_nothing(
    project: Project, run: Run
) -> None:
    run("gate", "-q")
    ended = run("baseline", "accept")
    assert (ended.code, ended.err.splitlines()[0]) == (2, "error: accept needs --reason")
    assert "Last loss" in " ".join(ended.out.split())
    assert not (project.path / ".repro-gate").exists()


def test_accept_refuses_what_another_gates_call_left_in_the_folder(
    project: Project, run: Run
) -> None:
    run("gate", "-q")
    project.settings("determinism: {threads: 2}")
    ended = run("baseline", "accept", "--reason", "new data")
    assert ended.code == 3
    assert "determinism.threads: 1 instead of 2" in ended.err
    assert "The last gate call in this folder was another gate's, or the settings" in ended.err
    assert not (project.path / ".repro-gate").exists()


@pytest.mark.usefixtures("project")
def test_accept_needs_a_proposal(run: Run) -> None:
    ended = run("baseline", "accept", "--reason", "x")
    assert ended.code == 3
    assert "nothing to accept" in ended.err


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    "reason", ["  ", "''", ".", "why the result moved", "Why the result moved."]
)
def test_what_says_nothing_is_no_reason(run: Run, reason: str) -> None:
    ended = run("baseline", "accept", "--reason", reason)
    assert ended.code == 2
    assert ended.err.startswith("error: accept needs ")
    assert "Say what changed the result" in ended.err


def test_no_placeholder_of_our_own_next_command_is_a_reason() -> None:
    source = (Path(next_step.__file__)).read_text("utf-8")
    printed = set(re.findall(r"--reason '([^']*)'", source)) - {"first baseline"}
    assert printed <= PLACEHOLDERS


def test_show_lists_the_entries(project: Project, run: Run) -> None:
    ended = run("baseline", "show")
    assert (ended.code, "no baseline" in ended.err) == (3, True)
    run("baseline", "record", "--reason", "first", "-q")
    shown = run("baseline", "show").out
    assert "loss 2.125" in " ".join(shown.split())
    assert project.git("rev-parse", "HEAD")[:12] in shown.replace("\n", "")
    assert "not committed" in shown
    assert json.loads(run("baseline", "show", "--json").out)["entries"]


def test_show_tells_the_commits_of_each_entrys_file(project: Project, run: Run) -> None:
    run("baseline", "record", "--reason", "first", "-q")
    file = only_entry(project.path)
    was = project.commit()
    text = json.loads(file.read_text())
    file.write_text(forged(json.dumps({**text, "reason": "\x1b[2J[red]lr 2e-3"})))
    now = project.commit()
    ended = run("baseline", "show")
    assert file.name in ended.out
    rows = [line.split() for line in ended.out.splitlines() if now[:7] in line or was[:7] in line]
    assert [row[1] for row in rows[-2:]] == [now[:7], was[:7]]
    assert rows[-2][-2:] == ["[red]lr", "2e-3"]
    assert rows[-1][-1] == "first"
    assert max(map(len, ended.out.splitlines())) <= 80
    (entry,) = json.loads(run("baseline", "show", "--json").out)["entries"]
    assert [one["commit"] for one in entry["history"]] == [now, was]
    assert entry["history"][1]["reason"] == "first"
    assert (entry["age_days"], entry["stale"]) == (0, False)
