"""A real training gives the same bits beside another run as alone, and waits when started ahead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gate_bench import Bench
from git_workshop import Repository

from gate.training.runs import RunMode
from gate.verdict.verdict import Outcome, Verdict

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SCRIPT = """
import random
import numpy as np
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(60):
    inputs = torch.randn(256, 64) + random.random() + float(np.random.rand())
    optimizer.zero_grad()
    loss = (model(inputs) ** 2).mean()
    loss.backward()
    optimizer.step()
"""
SETTINGS = """\
version: 1
train: {command: python train.py, max_steps: 60, device: cpu}
"""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    if os.geteuid() != 0 or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs root and two cores to let runs go beside each other")
    project = Repository(tmp_path / "project")
    project.write("train.py", SCRIPT)
    project.write("repro-gate.yml", SETTINGS)
    project.commit()
    return Bench(project, tmp_path / "out")


def _lanes(verdict: Verdict) -> set[int]:
    return {run.lane for run in verdict.runs if run.mode is RunMode.STRICT}


def test_beside_another_and_alone_a_run_gives_the_same_bits(bench: Bench) -> None:
    """Recorded by two runs beside each other; judged by two that go so, then by two that do not."""
    bench.record()
    together = bench.gate().verdict
    assert (together.outcome, len(_lanes(together))) == (Outcome.REPRODUCED, 2)
    bench.project.write("repro-gate.yml", SETTINGS + "runs: {parallel: never}\n")
    bench.project.commit()
    alone = bench.gate().verdict
    assert (alone.outcome, _lanes(alone)) == (Outcome.REPRODUCED, {0})
    assert together.states == alone.states


def test_steps_are_taken_when_it_is_a_runs_turn(bench: Bench) -> None:
    """What was started ahead has torch by then, and has not taken a step."""
    runs = {run.run.label: run for run in bench.gate().evidence.runs}
    for run in runs.values():
        assert run.first_step_clock_seconds is not None
        assert run.first_step_clock_seconds > run.run.clock_seconds
    # a default run is timed: none of its steps has company
    for label in ("default-1", "default-2"):
        timed = runs[label].run
        for other in runs.values():
            if other.run.label != label:
                end = other.run.clock_seconds + other.run.wall_seconds
                assert end <= timed.clock_seconds or (
                    other.run.clock_seconds >= timed.clock_seconds + timed.wall_seconds
                )
