"""Tolerances derived from a played training: reruns here, or evidence of other machines."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from data_training import READS
from evidence_cases import series_of
from gate_bench import FILES, Bench
from played_training import Project

from gate.comparison.measurements import CalibrationDocument
from gate.errors import EvidenceError, SettingsError
from gate.evidence.evidence_folder import EvidenceFolder
from gate.pipelines.measurement import (
    calibration,
    checked_ranges,
    from_folders,
    measure_noise,
    rerun,
)
from gate.settings.load import parse_settings

EVERY = ("every",)


def _folders(*folders: Path, priced: Bench) -> CalibrationDocument:
    request = priced.request(allow_dirty=True)
    return calibration(request, from_folders(request, FILES, folders), EVERY, 0.95)


def test_reruns_give_a_tolerance_with_its_origin(priced: Bench, project: Project) -> None:
    project.play(default={"random": True})
    request = priced.request()
    found = calibration(request, rerun(request, priced.adapters(), 3), EVERY, 0.95)
    (one,) = found.tolerances
    assert one.rule.derived is not None
    assert (one.rule.derived.runs, one.widest_step) == (3, 3)
    text = f"version: 1\ntrain: {{command: python a.py, max_steps: 3}}\n{found.block}"
    assert parse_settings(text.encode(), "block").compare.tolerances == (one.rule,)
    assert "# repro-gate baseline calibrate: 3 runs in default mode, one environment" in text
    # the played noise is as large as can be: it could catch nothing
    assert any("a regression of 1 % goes unnoticed" in note for note in found.notes)


def test_equal_reruns_give_none(priced: Bench) -> None:
    request = priced.request()
    found = calibration(request, rerun(request, priced.adapters(), 2), EVERY, 0.95)
    assert (found.tolerances, found.block) == ((), "")


def test_evidence_of_noise_calls_counts_every_default_run(
    priced: Bench, project: Project, tmp_path: Path
) -> None:
    project.play(default={"random": True})
    for name in ("one", "two"):
        other = Bench(project, tmp_path / name)
        measure_noise(other.request(), other.adapters(), runs=2)
    found = _folders(tmp_path / "one", tmp_path / "two" / "evidence", priced=priced)
    assert (found.runs, found.environments) == (4, 1)
    assert found.measured == "4 runs in default mode, from 2 folders of evidence"
    with pytest.raises(EvidenceError, match="is a copy of"):
        _folders(tmp_path / "one", tmp_path / "one", priced=priced)
    shutil.copytree(tmp_path / "one", tmp_path / "three")
    with pytest.raises(EvidenceError, match="is a copy of"):
        _folders(tmp_path / "one", tmp_path / "three", priced=priced)


def test_a_change_of_the_declared_data_is_no_noise(
    bench: Bench, project: Project, tmp_path: Path, mini: Path
) -> None:
    project.write("train.py", READS)
    project.settings(f"data:\n  - {{path: {mini}}}\n")
    for name in ("one", "two"):
        other = Bench(project, tmp_path / name)
        measure_noise(other.request(), other.adapters(), runs=2)
        (mini / "losses.txt").write_text("2.5 2.25 9")
    request = bench.request()
    with pytest.raises(EvidenceError, match="two: the declared data there differs from that in"):
        from_folders(request, FILES, (tmp_path / "one", tmp_path / "two"))


def test_strict_runs_count_once_for_each_environment(
    priced: Bench, project: Project, tmp_path: Path
) -> None:
    priced.gate()
    other = Bench(project, tmp_path / "again")
    other.gate()
    with pytest.raises(EvidenceError, match="there are 1 results to compare") as refused:
        _folders(priced.out, other.out, priced=priced)
    assert "Strict runs from one environment are identical" in refused.value.hint


def test_strict_runs_of_several_environments_are_the_scatter_between_machines(
    priced: Bench, tmp_path: Path
) -> None:
    here = priced.gate().evidence
    for cpu, last in (("one", 2.0), ("two", 2.25)):
        runs = tuple(
            run.model_copy(
                update={
                    "environment": run.environment.model_copy(
                        update={"parts": {**run.environment.parts, "cpu": cpu}}
                    ),
                    "metrics": (series_of((2.5, 2.25, last)),),
                }
            )
            for run in here.runs
        )
        EvidenceFolder(FILES, tmp_path / cpu).write(here.model_copy(update={"runs": runs}))
    found = _folders(priced.out, tmp_path / "one", tmp_path / "two", priced=priced)
    assert (found.runs, found.environments) == (3, 3)
    assert found.measured == "3 runs in strict mode, from 3 folders of evidence"
    assert [one.widest_step for one in found.tolerances] == [3]


def test_other_code_other_settings_and_no_evidence_are_refused(
    priced: Bench, project: Project, tmp_path: Path
) -> None:
    priced.gate()
    with pytest.raises(EvidenceError, match="there is no evidence in"):
        _folders(tmp_path / "nowhere", priced=priced)
    project.play(losses=["2.5", "2.25", "2.0"])
    other = Bench(project, tmp_path / "other")
    other.gate()
    with pytest.raises(EvidenceError, match="different code was trained there than in"):
        _folders(priced.out, other.out, priced=priced)
    project.settings("determinism: {threads: 2}")
    with pytest.raises(EvidenceError, match="under other training settings"):
        _folders(priced.out, other.out, priced=priced)


@pytest.mark.parametrize(
    ("ranges", "why"),
    [
        (("every", "1-2"), "--steps every takes every step that is left"),
        (("final", "final"), "--steps final is given twice"),
        (("1-5", "5-9"), "--steps 5-9 overlaps a range before it"),
        (("1-5", "x"), "--steps must be every, final or a range of steps such as 1-10, not 'x'"),
    ],
)
def test_ranges_that_hide_each_other_are_refused(ranges: tuple[str, ...], why: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(why)):
        checked_ranges(ranges)


def test_ranges_apart_and_the_rest_are_taken() -> None:
    assert checked_ranges(("1-5", "6-9", "final")) == ("1-5", "6-9", "final")
