"""The client of Weights & Biases itself writes the run that is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from client_runs import run_client

from gate.evidence.wandb_runs import wandb_metrics
from gate.system.files.files import LocalFiles

SCRIPT = """
import wandb
run = wandb.init(project="trial", config={"lr": 0.1})
for step in range(5):
    run.log({"loss": 1 / (step + 3), "eval": {"accuracy": step}, "note": "x"})
run.log({"late": 3.5}, step=10)
run.finish()
"""


@pytest.mark.slow
def test_an_offline_run_of_the_client_is_read_exactly(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    run_client(SCRIPT, tmp_path, {"WANDB_MODE": "offline"})
    found = wandb_metrics(LocalFiles(), tmp_path / "wandb", "wandb", ("*",))
    assert {series.name: list(series.points.pairs()) for series in found.series} == {
        "wandb.eval.accuracy": [(step, float(step)) for step in range(5)],
        "wandb.late": [(10, 3.5)],
        "wandb.loss": [(step, 1 / (step + 3)) for step in range(5)],
    }
