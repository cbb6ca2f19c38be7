"""What only a training with torch can hang on: workers of loaders, memory that nobody wrote."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from forked_trainings import ForkedBench
from played_training import Project

from gate.comparison.measurements import ShakenThing, ShakeResult
from gate.pipelines.shake import Asked, chosen_variations, shake

pytestmark = pytest.mark.torch

LOADER = """
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.arange(32, dtype=torch.float32).reshape(8, 4) / 32)
scale = 1.0
loader = DataLoader(data, batch_size=4)
scratch = torch.empty(4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(2):
    for (batch,) in loader:
        model(batch).square().mean().mul(scale).backward()
        optimizer.step()
"""
SCRATCH = "scratch = torch.empty(4)\n"
HANGING = LOADER.replace(SCRATCH, f"{SCRATCH}scale += loader.num_workers\n")
UNWRITTEN = LOADER.replace(SCRATCH, f"{SCRATCH}scale += float((scratch == 85).all())\n")


def things(project: Project, script: str, only: str) -> dict[str, ShakenThing]:
    project.write("train.py", script)
    project.commit()
    asked = Asked(variations=chosen_variations(only, None))
    # a short path: workers hand tensors over by sockets in TMPDIR, whose names hold 107 bytes
    with TemporaryDirectory() as short:
        priced = ForkedBench(project, Path(short) / "out")
        found = shake(priced.request(), priced.adapters(), asked).things
    return {thing.name: thing for thing in found}


def test_a_loader_and_memory_that_are_used_well_change_nothing(project: Project) -> None:
    found = things(project, LOADER, "worker-count,uninitialized-memory,hash-seed,clock")
    assert {name: (thing.result, thing.reason) for name, thing in found.items()} == dict.fromkeys(
        found, (ShakeResult.EQUAL, "")
    )
    assert found["worker-count"].varied == "2 instead of 0"


@pytest.mark.parametrize(
    ("script", "name", "place", "call"),
    [
        (HANGING, "worker-count", "train.py:6", "torch.utils.data.DataLoader"),
        (UNWRITTEN, "uninitialized-memory", "train.py:7", "torch.empty"),
    ],
)
def test_what_hangs_on_them_is_found_by_its_line(
    project: Project, script: str, name: str, place: str, call: str
) -> None:
    (thing,) = things(project, script, name).values()
    assert thing.result is ShakeResult.DIFFERS
    assert [(read.place, read.call) for read in thing.readings] == [(place, call)]
