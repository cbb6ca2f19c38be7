"""From the harness's lines to evidence, settings and reports; no training is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from evidence_cases import evidence_of, evidence_set_of, record_of, settings_of
from harness_folder import HarnessFolder, step_line

from gate.baseline.record import propose_entry
from gate.comparison.compare import compare_results
from gate.comparison.differences import Comparison
from gate.errors import EvidenceError
from gate.evidence.collect import collect_run
from gate.evidence.run_evidence import RecorderCost, RunEvidence
from gate.evidence.step_columns import StepDigest, StepDigests
from gate.system.files.files import LocalFiles
from gate.text.documents import read_document, write_document
from gate.training.child_environment import child_environment
from gate.training.launch import run_folders
from gate.training.runs import PlannedRun, RunMode
from gate.verdict.findings import hidden_state

FINGERPRINTS = {"batch": "sha256:1", "random.torch": "sha256:2"}


@pytest.fixture
def harness(tmp_path: Path) -> HarnessFolder:
    (tmp_path / "out").mkdir()
    return HarnessFolder(path=tmp_path / "out")


def collected(harness: HarnessFolder) -> RunEvidence:
    return collect_run(
        LocalFiles(), record_of(), harness.path, harness.path.parent, b"", settings_of().train
    )


def with_batch(text: str) -> RunEvidence:
    steps = StepDigests.of(
        step.model_copy(update={"fingerprints": {"batch": text}}) for step in evidence_of().steps
    )
    return evidence_of().model_copy(update={"steps": steps})


def compared(first: RunEvidence, second: RunEvidence) -> Comparison:
    return compare_results(first, second, settings_of().compare, ("strict-1", "strict-2"))


def test_a_thinned_step_keeps_its_place_and_has_no_digest(harness: HarnessFolder) -> None:
    harness.whole(sampling_intervals={"tensors": 2}, observe_seconds=0.5)
    harness.steps(
        step_line(1, fingerprints=FINGERPRINTS, memory_bytes=7, observe_seconds=0.5),
        step_line(2, parameters=None, memory_bytes=9, device_bytes=3, observe_seconds=0.01),
    )
    found = collected(harness)
    assert [(step.parameters != "", step.fingerprints) for step in found.steps] == [
        (True, FINGERPRINTS),
        (False, {}),
    ]
    assert [(each.resident_bytes, each.device_bytes) for each in found.memory] == [(7, 0), (9, 3)]
    assert found.recorder == RecorderCost(
        observe_seconds=0.01, step_seconds=0.25, sampling_intervals={"tensors": 2}
    )
    assert found.recorder.share == 0.04


def test_parameters_count_as_observed_when_every_optimizer_was(harness: HarnessFolder) -> None:
    harness.whole()
    harness.steps(
        step_line(1),
        step_line(1, optimizer=1, parameters=None, fingerprints=FINGERPRINTS),
        step_line(2),
        step_line(2, optimizer=1),
    )
    first, second = collected(harness).steps
    assert (first.parameters, bool(second.parameters)) == ("", True)
    second_optimizer = {f"{name}.1": digest for name, digest in FINGERPRINTS.items()}
    assert first.fingerprints == second_optimizer | {"parameters.0": f"sha256:{1:064x}"}


def test_a_step_without_fingerprints_is_written_as_it_was_before_there_were_any() -> None:
    bare = StepDigest(step=1, parameters="sha256:0")
    assert bare.model_dump() == {"step": 1, "parameters": "sha256:0"}
    assert read_document(StepDigest, write_document(bare), "x") == bare
    full = StepDigest(step=1, fingerprints=FINGERPRINTS)
    assert read_document(StepDigest, write_document(full), "x") == full


def test_a_baseline_keeps_the_fingerprints_of_the_first_steps_and_then_of_fewer() -> None:
    run = with_batch("a:1")
    steps = StepDigests.of(
        StepDigest(step=step, parameters="a:1", fingerprints=FINGERPRINTS) for step in range(1, 40)
    )
    run = run.model_copy(update={"steps": steps})
    entry = propose_entry(
        evidence_set_of(run, run), compared(run, run), training={}, not_finite=None, reason=""
    )
    assert [step.step for step in entry.steps if step.fingerprints] == [*range(1, 21), 32]
    assert all(step.parameters for step in entry.steps)


def test_a_fingerprint_that_moves_no_number_is_a_notice() -> None:
    (notice,) = hidden_state(compared(with_batch("a:1"), with_batch("a:2")))
    assert (
        notice.message
        == "every number is equal, but these fingerprints differ: batch from step 1 on"
    )
    assert hidden_state(compared(with_batch("a:1"), with_batch("a:1"))) == ()


def told(planned: PlannedRun) -> dict[str, str]:
    settings = settings_of(record={"overhead_budget": 0.1, "free_seconds": 7.5})
    return child_environment(planned, settings, run_folders(Path("/run")), {})


def test_every_run_is_told_the_budget_and_cost_runs_not_to_observe() -> None:
    variables = told(PlannedRun(label="strict-1", mode=RunMode.STRICT))
    assert variables["REPRO_GATE_OBSERVE"] == "on"
    assert variables["REPRO_GATE_OVERHEAD_BUDGET"] == "0.1"
    assert variables["REPRO_GATE_FREE_SECONDS"] == "7.5"
    blind = PlannedRun(label="cost-1", mode=RunMode.DEFAULT, observe=False)
    assert told(blind)["REPRO_GATE_OBSERVE"] == "off"


def test_a_sampling_interval_that_is_not_nested_is_refused(harness: HarnessFolder) -> None:
    harness.whole(sampling_intervals={"tensors": 3})
    with pytest.raises(EvidenceError, match=r"3 is not a power of two"):
        collected(harness)


def test_a_fingerprint_counts_where_every_rank_observed_it(harness: HarnessFolder) -> None:
    harness.whole()
    harness.steps(step_line(1, fingerprints=FINGERPRINTS), step_line(2, fingerprints=FINGERPRINTS))
    other = harness.of(rank=1, pid=12)
    other.whole()
    other.steps(
        step_line(1, fingerprints=FINGERPRINTS),
        step_line(2, fingerprints={"batch": "sha256:1"}, unobserved=["random", "tensors"]),
    )
    first, second = collected(harness).steps
    assert set(first.fingerprints) == {"batch", "random.torch"}
    assert set(second.fingerprints) == {"batch"}
