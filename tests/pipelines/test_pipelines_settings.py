"""Settings that name a place or something to leave out, each through a whole gate."""

from __future__ import annotations

import pytest
from baseline_cases import FOLDER
from gate_bench import Bench
from played_training import SCRIPT, SETTINGS, Project

from gate.errors import EvidenceError
from gate.verdict.verdict import Outcome


def with_train(project: Project, *lines: str) -> None:
    """Write settings with more keys in the section `train`."""
    more = "".join(f"  {line}\n" for line in lines)
    project.write("repro-gate.yml", SETTINGS.replace("  max_steps: 3\n", f"  max_steps: 3\n{more}"))
    project.commit()


def test_what_a_checkpoint_excludes_may_move_and_nothing_beside_it(
    bench: Bench, project: Project
) -> None:
    rules = "checkpoint_exclude: [{pattern: /state/lag, reason: measured}]"
    with_train(project, "checkpoint: saved", rules)
    project.play(files={"saved/state.json": '{"epoch": 3, "lag": 1.5}'})
    bench.record()
    project.play(files={"saved/state.json": '{"epoch": 3, "lag": 2.5}'})
    assert bench.gate().verdict.outcome is Outcome.REPRODUCED
    project.play(files={"saved/state.json": '{"epoch": 4, "lag": 2.5}'})
    assert bench.gate().verdict.outcome is Outcome.CODE_DRIFT


def test_the_training_starts_in_its_own_folder(bench: Bench, project: Project) -> None:
    for name, text in (("train.py", SCRIPT), ("play.json", '{"losses": ["1.5", "0.5"]}')):
        project.write(f"models/{name}", text)
        (project.path / name).unlink()
    with_train(project, "workdir: models")
    found = bench.gate()
    assert [series.last_decimal for series in found.verdict.series] == ["0.5"]


def test_a_metric_is_read_from_what_the_script_prints(bench: Bench, project: Project) -> None:
    with_train(project, "metrics: {stdout_pattern: 'accuracy (?P<accuracy>[0-9.]+)'}")
    project.play(says="accuracy 0.75")
    series = {series.name: series.last_decimal for series in bench.gate().verdict.series}
    assert series["stdout.accuracy"] == "0.75"
    with_train(
        project,
        "metrics: {stdout_pattern: 'accuracy (?P<accuracy>[0-9.]+)'}",
        "output_limit_bytes: 4096",
    )
    project.play(says="accuracy 0.75\n" + "x" * 4096)
    with pytest.raises(EvidenceError, match="of which 4,096 were kept"):
        bench.gate()


def test_the_baseline_lies_where_the_settings_say(bench: Bench, project: Project) -> None:
    bench.record()
    (project.path / FOLDER).rename(project.path / "mine")
    project.commit()
    assert bench.gate().verdict.outcome is Outcome.NO_BASELINE
    project.settings("baseline: {path: mine/}\n")
    assert bench.gate().verdict.outcome is Outcome.REPRODUCED
