"""Data of a real training: what it reads and nobody declared, and the same once it is declared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from forked_trainings import ForkedBench
from git_workshop import Repository

from gate.verdict.verdict import Outcome

pytestmark = pytest.mark.torch
SCRIPT = """
import os
import random
import numpy
import torch
PLACE
names = sorted(os.listdir(place))
random.Random(0).shuffle(names)
train, held_back = names[:6], names[6:]
rows = torch.from_numpy(numpy.concatenate([numpy.load(f"{place}/{name}") for name in train]))
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    optimizer.zero_grad()
    loss = ((model(rows[:, :2]) - rows[:, 2:]) ** 2).mean()
    loss.backward()
    optimizer.step()
"""
SETTINGS = """\
version: 1
train: {command: python train.py, max_steps: 20, device: cpu}
isolation: {mode: none}
"""


@pytest.fixture
def mini(tmp_path: Path) -> Path:
    folder = tmp_path / "srv" / "mini"
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for number in range(8):
        np.save(folder / f"{number}.npy", random.random((16, 3), dtype=np.float32))
    return folder


def test_undeclared_data_is_named_and_declared_data_is_judged(tmp_path: Path, mini: Path) -> None:
    project = Repository(tmp_path / "project")
    bench = ForkedBench(project, tmp_path / "out")
    project.write("train.py", SCRIPT.replace("PLACE", f"place = {str(mini)!r}"))
    project.write("repro-gate.yml", SETTINGS)
    project.commit()
    found = {one.code: one for one in bench.gate().verdict.findings}
    undeclared = found["undeclared-read"]
    assert undeclared.message.startswith(f"read and not declared: {mini}")
    assert f"data: [{{path: {mini}, as: mini}}]" in undeclared.remedy
    assert undeclared.code_place is not None
    assert (undeclared.code_place.file, undeclared.code_place.line) == ("train.py", 10)
    assert "train.py:8" in found["split-by-listing"].message

    place = 'place = os.environ["REPRO_GATE_DATA"] + "/mini"'
    project.write("train.py", SCRIPT.replace("PLACE", place))
    project.write("repro-gate.yml", SETTINGS + f"data:\n  - {{path: {mini}, as: mini}}\n")
    project.commit()
    bench.record()
    verdict = bench.gate().verdict
    assert verdict.outcome is Outcome.REPRODUCED
    assert "undeclared-read" not in [one.code for one in verdict.findings]

    # a quarter of the rows half as large again, as a colleague does it in place
    rows = np.load(mini / "0.npy")
    rows[:4] *= 1.5
    np.save(mini / "0.npy", rows)
    verdict = bench.gate().verdict
    assert (verdict.outcome, verdict.passes) == (Outcome.DATA_DRIFT, False)
    (moved,) = (one for one in verdict.findings if one.code == "data-moved")
    assert moved.message.startswith("mini, 1 of 8 files (first: 0.npy), mean 0.")
