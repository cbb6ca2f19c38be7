"""The client of trackio itself writes the run that is read."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from client_runs import run_client

from gate.evidence.trackio_runs import trackio_metrics
from gate.system.files.files import LocalFiles

SCRIPT = """
import trackio
trackio.init(project="a trial", config={"lr": 0.1})
for step in range(5):
    trackio.log({"loss": 1 / (step + 3), "eval": {"accuracy": step}, "note": "x"})
trackio.log({"late": float("nan"), "weights": trackio.Histogram([1.0, 2.0])}, step=10)
# no finish(): a training that the gate stops has none, and the client ends the run by itself
"""


@pytest.mark.slow
def test_a_run_of_the_client_is_read_exactly(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    run_client(SCRIPT, tmp_path, {"TRACKIO_DIR": "tracked", "TRACKIO_STORAGE_MODE": "jsonl"})
    found = trackio_metrics(LocalFiles(), tmp_path / "tracked", "tracked", ("*",))
    values = {series.name: list(series.points.pairs()) for series in found.series}
    ((late, number),) = values.pop("trackio.late")
    assert (late, math.isnan(number)) == (10, True)
    assert values == {
        "trackio.eval.accuracy": [(step, float(step)) for step in range(5)],
        "trackio.loss": [(step, 1 / (step + 3)) for step in range(5)],
    }
    assert [one.name for one in found.passed_over] == ["note", "weights"]
