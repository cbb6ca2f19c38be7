"""Levels over seeds with a real training that seeds itself: a refactor, and a regression."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked_trainings import ForkedBench
from git_workshop import Repository

from gate.settings.levels import ReachedLevel
from gate.verdict.verdict import Outcome

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SCRIPT = """
import argparse
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, required=True)
torch.manual_seed(parser.parse_args().seed)
torch.set_num_threads(1)
DRAWN
targets = inputs @ torch.tensor([1.0, -2.0, 0.5, 3.0]) + 0.5 * torch.randn(512)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for step in range(20):
    optimizer.zero_grad()
    loss = ((model(inputs).squeeze() - targets) ** 2).mean()
    loss.backward()
    optimizer.step()
"""
INPUTS, MODEL = "inputs = torch.randn(512, 4)\n", "model = torch.nn.Linear(4, 1)\n"
SETTINGS = """\
version: 1
train:
  command: "python train.py --seed {seed}"
  max_steps: 20
  device: cpu
isolation: {mode: none}
"""
SEEDS = """\
seeds: [42, 1, 2]
policy: {level: statistical, equivalence: {loss: {absolute: 0.15}}}
"""


def _script(drawn: str) -> str:
    return SCRIPT.replace("DRAWN\n", drawn)


def test_a_refactor_passes_over_seeds_alone_and_a_regression_does_not(tmp_path: Path) -> None:
    project = Repository(tmp_path / "project")
    bench = ForkedBench(project, tmp_path / "out")
    project.write("train.py", _script(INPUTS + MODEL))
    project.write("repro-gate.yml", SETTINGS + SEEDS)
    project.commit()
    bench.record()

    # the same training, but the model is made before the data: every random number is another
    project.write("train.py", _script(MODEL + INPUTS))
    project.commit()
    verdict = bench.gate().verdict
    assert (verdict.outcome, verdict.passes) == (Outcome.CODE_DRIFT, True)
    assert verdict.level is ReachedLevel.STATISTICAL

    project.write("repro-gate.yml", SETTINGS)
    project.commit()
    verdict = bench.gate().verdict
    assert (verdict.outcome, verdict.passes) == (Outcome.CODE_DRIFT, False)
    assert verdict.level is None

    slower = _script(MODEL + INPUTS).replace("lr=0.2", "lr=0.02")
    project.write("train.py", slower)
    project.write("repro-gate.yml", SETTINGS + SEEDS)
    project.commit()
    verdict = bench.gate().verdict
    assert (verdict.outcome, verdict.passes) == (Outcome.CODE_DRIFT, False)
    assert verdict.judged is not None
    assert "which is outside ±0.15" in verdict.judged.problem
