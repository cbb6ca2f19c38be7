"""The examples through the whole gate, with torch: what the README promises of each.

`make demo` gates them in processes and accounts of their own.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from forked_trainings import ForkedBench
from git_workshop import Repository

from gate.diagnosis.diagnosis import ResumeCauseKind, ResumeState
from gate.verdict.verdict import Outcome, Verdict

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    made = Repository(tmp_path_factory.mktemp("examples") / "repository")
    ignored = shutil.ignore_patterns(".repro-gate", "__pycache__", "*.pt", "*.jsonl")
    shutil.copytree(EXAMPLES, made.path / "examples", ignore=ignored)
    made.commit()
    return made


def _bench(repository: Repository, tmp_path: Path, example: str) -> ForkedBench:
    return ForkedBench(repository, tmp_path / "out", config=f"examples/{example}/repro-gate.yml")


def _recorded(repository: Repository, tmp_path: Path, example: str) -> ForkedBench:
    bench = _bench(repository, tmp_path, example)
    bench.record()
    return bench


@pytest.mark.parametrize("example", ["digits", "chargpt"])
def test_a_real_training_reproduces_its_baseline(
    repository: Repository, tmp_path: Path, example: str
) -> None:
    bench = _recorded(repository, tmp_path, example)
    verdict = bench.gate().verdict
    assert (verdict.outcome, verdict.passes) == (Outcome.REPRODUCED, True)
    assert verdict.repeat is not None
    assert verdict.repeat.compared_steps == 25
    assert "loss" in [series.name for series in verdict.series]


def test_declared_data_is_prepared_alike_and_its_baseline_reproduced(
    repository: Repository, tmp_path: Path
) -> None:
    subprocess.run((EXAMPLES / "declared" / "put-data.sh",), check=True)
    verdict = _recorded(repository, tmp_path, "declared").gate().verdict
    assert (verdict.outcome, verdict.passes) == (Outcome.REPRODUCED, True)
    assert [one.name for one in verdict.data] == ["digits.csv.gz", "ready"]
    assert [one.rows for one in verdict.data[1].statistics] == [1797]


def test_a_shuffle_without_a_seed_is_nondeterministic(
    repository: Repository, tmp_path: Path
) -> None:
    verdict: Verdict = _bench(repository, tmp_path, "diverges").gate().verdict
    assert verdict.outcome is Outcome.NONDETERMINISTIC
    assert verdict.diagnosis is not None
    assert (verdict.diagnosis.first_step, verdict.diagnosis.kind) == (1, "input")


def test_another_learning_rate_is_code_drift(repository: Repository, tmp_path: Path) -> None:
    script = repository.path / "examples" / "drifts" / "train.py"
    drifting = script.read_text()
    script.write_text(drifting.replace("LEARNING_RATE = 0.11", "LEARNING_RATE = 0.10"))
    repository.commit()
    bench = _recorded(repository, tmp_path, "drifts")
    script.write_text(drifting)
    repository.commit()
    assert bench.gate().verdict.outcome is Outcome.CODE_DRIFT


def test_the_example_that_resumes_does_so_exactly(repository: Repository, tmp_path: Path) -> None:
    verdict = _recorded(repository, tmp_path, "resumes").gate().verdict
    assert (verdict.outcome, verdict.passes) == (Outcome.REPRODUCED, True)
    assert verdict.resume is not None
    assert (verdict.resume.state, verdict.resume.step) == (ResumeState.EXACT, 20)
    assert "checkpoint-incomplete" not in [finding.code for finding in verdict.findings]


def test_it_no_longer_does_without_the_line_that_restores_the_generator(
    repository: Repository, tmp_path: Path
) -> None:
    script = repository.path / "examples" / "resumes" / "train.py"
    whole = script.read_text()
    line = '    random = saved["random"]\n'
    assert line in whole
    script.write_text(whole.replace(line, ""))
    repository.commit()
    verdict = _bench(repository, tmp_path, "resumes").gate().verdict
    script.write_text(whole)
    repository.commit()
    assert (verdict.outcome, verdict.exit_code) == (Outcome.RESUME_DIFFERS, 1)
    assert verdict.resume is not None
    assert [cause.kind for cause in verdict.resume.causes] == [ResumeCauseKind.RANDOM]


def test_a_harness_that_misses_a_step_of_the_state_would_be_seen(
    repository: Repository, tmp_path: Path
) -> None:
    """The state that the harness captures is the one that the script saved by itself."""
    found = _bench(repository, tmp_path, "digits").gate()
    tensors = {tensor.name: tensor for tensor in found.evidence.runs[0].checkpoint.tensors}
    saved = {name for name in tensors if name.startswith("checkpoint/")}
    assert saved
    for name in saved:
        captured = tensors[name.replace("checkpoint/", "state/model/0/")]
        assert captured.sha256 == tensors[name].sha256
