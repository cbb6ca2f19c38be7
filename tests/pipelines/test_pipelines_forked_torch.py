"""A gate call whose trainings are forks is judged as one whose trainings have their own Python."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked_trainings import ForkedBench, ForkedTrainings
from gate_bench import Bench, gate_call
from git_workshop import Repository

from gate.pipelines.case import Gated

pytestmark = pytest.mark.torch
SCRIPT = """
import random
import sys
import numpy
import torch
rate = float(open("numbers.txt").read())
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=rate * (1 + random.random()))
for step in range(4):
    optimizer.zero_grad()
    rows = torch.from_numpy(numpy.random.rand(4, 8).astype("float32"))
    model(rows).square().sum().backward()
    optimizer.step()
    print("step", step, sys.argv[1:])
torch.save(model.state_dict(), "model.pt")
"""
SETTINGS = """\
version: 1
train: {command: python train.py --name small, max_steps: 9, device: cpu, checkpoint: model.pt}
isolation: {mode: none}
cost: {when: never}
"""


def _told(gated: Gated) -> dict[str, object]:
    """What is judged and proposed, without times and sizes of memory."""
    verdict, entry = gated.verdict, gated.proposed
    assert entry is not None
    return {
        "verdict": (verdict.outcome, verdict.cause, verdict.series),
        "findings": sorted((one.code, one.message) for one in verdict.findings),
        "environment": entry.environment,
        "runs": [
            (run.run.label, run.metrics, run.checkpoint, sorted(map(repr, run.sources)))
            for run in gated.evidence.runs
        ],
    }


def test_both_tell_the_same(tmp_path: Path) -> None:
    project = Repository(tmp_path / "project")
    project.write("train.py", SCRIPT)
    project.write("numbers.txt", "0.1\n")
    project.write("repro-gate.yml", SETTINGS)
    project.commit()
    bench = ForkedBench(project, tmp_path / "forked")
    adapters = bench.adapters()
    forked = gate_call(bench.request(), adapters)
    assert isinstance(adapters.processes, ForkedTrainings)
    assert len(adapters.processes.forks) == len(forked.evidence.runs) == 2
    assert _told(forked) == _told(Bench(project, tmp_path / "own").gate())
