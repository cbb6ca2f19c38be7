"""A training that saves a folder, gated as a whole."""

from __future__ import annotations

from gate_bench import Bench
from played_training import SETTINGS, Project

from gate.verdict.verdict import Outcome

SAVED = {
    "saved/trainer_state.json": '{"global_step": 3, "train_runtime": 1.5}',
    "saved/deep/values.json": "[1, 2.5]",
    "saved/notes.txt": "text that nobody understands",
}


def plays(project: Project, **files: str) -> None:
    """Save these files into the folder, which the settings name."""
    project.write(
        "repro-gate.yml", SETTINGS.replace("  max_steps", "  checkpoint: saved\n  max_steps")
    )
    project.play(files={**SAVED, **files})


def test_a_saved_folder_is_compared(bench: Bench, project: Project) -> None:
    plays(project)
    bench.record()
    found = bench.gate()
    assert found.verdict.outcome is Outcome.REPRODUCED
    names = {tensor.name for tensor in found.evidence.runs[0].checkpoint.tensors}
    assert {"checkpoint/trainer_state/global_step", "checkpoint/deep/values[1]"} <= names


def test_a_file_of_the_folder_that_moved_is_code_drift(bench: Bench, project: Project) -> None:
    plays(project)
    bench.record()
    plays(project, **{"saved/deep/values.json": "[1, 2.75]"})
    assert bench.gate().verdict.outcome is Outcome.CODE_DRIFT


def test_a_time_in_the_folder_may_move(bench: Bench, project: Project) -> None:
    plays(project)
    bench.record()
    plays(project, **{"saved/trainer_state.json": '{"global_step": 3, "train_runtime": 9.5}'})
    assert bench.gate().verdict.outcome is Outcome.REPRODUCED
