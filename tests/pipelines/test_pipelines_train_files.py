"""`train.files`: every run is a copy of these files alone, and an entry keeps their digest."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from baseline_cases import only_entry
from gate_bench import FILES, Bench
from played_training import SETTINGS, Project

from gate.baseline.folder import read_entry
from gate.errors import EvidenceError, RepositoryError
from gate.pipelines.gate import judging, run_only
from gate.settings.load import answering_digest
from gate.verdict.verdict import Outcome

SOME = SETTINGS.replace("max_steps: 3\n", "max_steps: 3\n  files: [train.py, 'play.*']\n")


@pytest.fixture
def some(bench: Bench, project: Project) -> Bench:
    project.write("other.py", "")
    project.write("repro-gate.yml", SOME)
    project.commit()
    return bench


def test_the_digest_of_an_entry_moves_with_these_files_alone(some: Bench, project: Project) -> None:
    some.record()
    first = read_entry(only_entry(project.path).read_bytes(), "baseline").files_sha256
    project.write("other.py", "# a line")
    project.commit()
    again = some.gate()
    assert again.verdict.outcome is Outcome.REPRODUCED
    assert answering_digest(again.evidence.files_digest, some.request().settings) == first
    # whatever is in its name
    project.write("play.\ntxt", "one more that fits a pattern")
    project.commit()
    assert some.gate().evidence.files_digest != first


def test_the_files_are_settings_of_the_training(some: Bench, project: Project) -> None:
    some.record()
    project.write("repro-gate.yml", SOME.replace("train.py,", "train.py, other.py,"))
    project.commit()
    verdict = some.gate().verdict
    assert verdict.outcome is Outcome.NOT_COMPARABLE
    assert "train.files" in verdict.cause


def test_the_judging_job_hashes_the_files_itself(some: Bench, project: Project) -> None:
    commit = some.record()
    folder = run_only(some.request(commit=commit), some.adapters())
    some.out = some.out.parent / "judged"
    imported = replace(some.request(commit=commit), imported_runs=True)
    judged = judging(folder)(imported, some.adapters(), None)
    assert judged.verdict.passes
    assert judged.evidence.files_digest != ""
    document = json.loads((folder / "set.json").read_text())
    document["files_digest"] = "0" * 64
    (folder / "set.json").write_text(json.dumps(document))
    with pytest.raises(EvidenceError):
        judging(folder)(imported, some.adapters(), None)
    assert project.path.exists()


def test_a_commit_without_any_of_the_files_cannot_be_trained(some: Bench, project: Project) -> None:
    project.write("repro-gate.yml", SOME.replace("[train.py, 'play.*']", "[src]"))
    project.commit()
    with pytest.raises(RepositoryError, match=r"train\.files leaves no file"):
        some.gate()
    assert not FILES.exists(some.out / "verdict.json")
