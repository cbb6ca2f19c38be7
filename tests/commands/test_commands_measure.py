from __future__ import annotations

import json

import pytest
from command_line import Run
from played_training import Project

LOSSES = [str(2.5 - step / 64) for step in range(8)]
COST = "cost: {warmup_steps: 1, min_steps: 4, rounds: 3, budget_percent: 5}\n"


def test_cost_shows_prices_writes_documents_and_fails_above_the_budget(
    project: Project, run: Run
) -> None:
    project.play(losses=LOSSES, knob_seconds={"deterministic_algorithms": 0.02})
    project.settings(COST)
    ended = run("cost", "-q", "--out", "results")
    assert ended.code == 1
    assert "Determinism costs +20.0 % step time" in ended.out
    assert "over budget" in " ".join(ended.out.split())
    document = json.loads((project.path / "results" / "cost.json").read_text())
    assert document["schema_version"] == "repro-gate.cost/1"
    markdown = (project.path / "results" / "cost.md").read_text()
    assert markdown.startswith("### Cost of determinism\n\nDeterminism costs +20.0 %")
    assert "| strict-fill over default | +20.0 % |" in markdown


def test_cost_inside_its_budget_ends_with_0(project: Project, run: Run) -> None:
    project.play(losses=LOSSES)
    project.settings(COST)
    assert run("cost", "-q").code == 0


def test_attribution_names_the_minimal_set(project: Project, run: Run) -> None:
    project.play(losses=LOSSES, knob_seconds={"inductor_deterministic": 0.02})
    project.settings(COST.replace("budget_percent: 5", "budget_percent: 50"))
    ended = run("cost", "--attribute", "--json")
    assert ended.code == 0
    minimal = json.loads(ended.out)["minimal"]
    assert minimal["dropped"] == ["inductor_deterministic"]
    assert minimal["verified"]


@pytest.mark.usefixtures("project")
def test_noise_of_equal_runs_says_what_it_cannot_say(run: Run) -> None:
    ended = run("noise", "--runs", "2", "-q")
    assert ended.code == 0
    assert "All 2 runs in default mode were equal; up to 95 %" in ended.out
    assert "no metric moved" in ended.out


def test_noise_shows_tolerances_to_copy(project: Project, run: Run) -> None:
    project.play(default={"random": True})
    ended = run("noise", "--runs", "2", "--out", "results")
    assert "2 runs in default mode gave 2 results, differing from step 3 on." in ended.out
    assert '- {metric: "loss", absolute: ' in ended.out
    document = json.loads((project.path / "results" / "noise.json").read_text())
    assert document["distinct_results"] == 2
    markdown = (project.path / "results" / "noise.md").read_text()
    assert document["snippet"].strip() in markdown


@pytest.mark.usefixtures("project")
def test_one_run_has_no_noise(run: Run) -> None:
    ended = run("noise", "--runs", "1")
    assert ended.code == 2
    assert "--runs" in ended.err


def test_calibrate_prints_derived_tolerances_and_writes_them_between_marks(
    project: Project, run: Run
) -> None:
    project.play(default={"random": True})
    before = (project.path / "repro-gate.yml").read_text()
    ended = run("baseline", "calibrate", "--runs", "2", "--out", "results", "-q", "--write")
    assert ended.code == 0
    assert "1 tolerance derived from 2 runs in default mode, 1 environment" in ended.out
    assert "      derived: {runs: 2, factor: " in ended.out
    assert "written: " in ended.err
    after = (project.path / "repro-gate.yml").read_text()
    assert after.startswith(before)
    assert "# <<< repro-gate baseline calibrate" in after
    document = json.loads((project.path / "results" / "calibration.json").read_text())
    assert document["block"] in after


def test_calibrate_leaves_a_compare_section_of_the_users_own_alone(
    project: Project, run: Run
) -> None:
    project.play(default={"random": True})
    project.settings("compare: {tolerances: [{metric: loss, relative: 0.1}]}\n")
    before = (project.path / "repro-gate.yml").read_text()
    ended = run("baseline", "calibrate", "--runs", "2", "-q", "--write")
    assert ended.code == 2
    # what was measured is not lost
    assert "      derived: {runs: 2, factor: " in ended.out
    assert "repro-gate.yml: has a compare section of its own" in ended.err
    assert (project.path / "repro-gate.yml").read_text() == before


@pytest.mark.usefixtures("project")
def test_calibrate_of_equal_runs_writes_nothing(run: Run) -> None:
    ended = run("baseline", "calibrate", "--runs", "2", "-q", "--write")
    assert ended.code == 0
    assert "no metric moved" in " ".join(ended.out.split())
    assert "written" not in ended.err


@pytest.mark.usefixtures("project")
def test_calibrate_wants_reruns_or_evidence_and_not_both(run: Run) -> None:
    ended = run("baseline", "calibrate", "--runs", "2", "--from", "x")
    assert ended.code == 2
    assert "--from and --runs exclude each other" in ended.err
