"""Batches that pass no DataLoader are fingerprinted where they enter the model, order included.

In each script a kind of batches is trained on three times without a rate, so that nothing moves:
twice in one order and then in another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.harness.conftest import Harness

pytestmark = pytest.mark.torch

BEGIN = """
import collections, dataclasses, io, tarfile, types
import numpy as np, torch
from torch import nn
array = np.arange(24, dtype=np.float32).reshape(6, 4)
rows = torch.from_numpy(array)
straight, turned = [0, 1, 2, 3, 4, 5], [3, 4, 5, 0, 1, 2]
"""
TRAINING = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for order in (straight, straight, turned):
    for batch in batches(order):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        break
"""
PLAIN = "model = nn.Linear(4, 1)\n"
KINDS = {
    "an iterator of one's own": PLAIN
    + """
def batches(order):
    for start in range(0, 6, 3):
        yield torch.stack([rows[i] for i in order[start : start + 3]])
""",
    "slices of an array": PLAIN
    + """
def batches(order):
    mixed = array[order]
    return (torch.tensor(mixed[start : start + 3]) for start in range(0, 6, 3))
""",
    "shards in a tar file": PLAIN
    + """
def shard(order):
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for i in order:
            entry = tarfile.TarInfo(f"{i}.bin")
            entry.size = array[i].nbytes
            tar.addfile(entry, io.BytesIO(array[i].tobytes()))
    return io.BytesIO(written.getvalue())
def batches(order):
    with tarfile.open(fileobj=shard(order)) as tar:
        files = [bytearray(tar.extractfile(member).read()) for member in tar]
    yield torch.stack([torch.frombuffer(file, dtype=torch.float32) for file in files[:3]])
""",
    "a mapping": """
class Model(nn.Linear):
    def forward(self, batch): return super().forward(batch["rows"])
model = Model(4, 1)
def batches(order): yield collections.UserDict(rows=rows[order[:3]], names=["a", "b"])
""",
    "a dataclass": """
@dataclasses.dataclass
class Batch:
    rows: torch.Tensor
class Model(nn.Linear):
    def forward(self, batch): return super().forward(batch.rows)
model = Model(4, 1)
def batches(order): yield Batch(rows[order[:3]])
""",
    "an object": """
class Model(nn.Linear):
    def forward(self, batch): return nn.functional.linear(batch.rows, self.weight)
model = Model(4, 1)
def batches(order): yield types.SimpleNamespace(rows=rows[order[:3]], owner=model)
""",
    "arrays in an object": """
class Batch:
    def __init__(self, rows): self.parts = {"rows": rows}
class Model(nn.Linear):
    def forward(self, batch):
        return nn.functional.linear(torch.from_numpy(batch.parts["rows"]), self.weight)
model = Model(4, 1)
def batches(order): yield Batch(array[order[:3]])
""",
    "behind a module that takes nothing": """
class Prompt(nn.Module):
    def __init__(self):
        super().__init__()
        self.learned = nn.Parameter(torch.ones(4))
    def forward(self, scale=1.0): return self.learned * scale
prompt, layer = Prompt(), nn.Linear(4, 1)
class Both:
    def parameters(self): return [*prompt.parameters(), *layer.parameters()]
    def __call__(self, batch): return layer(prompt() * batch)
model = Both()
def batches(order): yield rows[order[:3]]
""",
    "behind a frozen part": """
frozen, layer = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 1)
class Both:
    def parameters(self): return layer.parameters()
    def __call__(self, batch): return layer(frozen(batch))
model = Both()
def batches(order): yield rows[order[:3]]
""",
    "a method that is no forward": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
    def training_step(self, batch): return self.layer(batch)
inner = Model()
model = types.SimpleNamespace()
class Stepping:
    def parameters(self): return inner.parameters()
    def __call__(self, batch): return inner.training_step(batch)
model = Stepping()
def batches(order): yield rows[order[:3]]
""",
    "a compiled model": """
model = torch.compile(nn.Linear(4, 1), backend="eager")
def batches(order): yield rows[order[:3]]
""",
    "a model in TorchScript": """
model = torch.jit.trace(nn.Linear(4, 1), rows[:3])
def batches(order): yield rows[order[:3]]
""",
}


def test_the_order_of_rows_is_in_the_fingerprint_of_every_kind(harness: Harness) -> None:
    """One process for all: torch is slow to import."""
    # as one optimizer after another, each kind has steps of its own
    parts = [
        f"def kind{n}():\n" + indented(kind + TRAINING) for n, kind in enumerate(KINDS.values())
    ]
    calls = "".join(f"kind{number}()\n" for number in range(len(KINDS)))
    source = BEGIN + "\n".join(parts) + calls
    most = {"REPRO_GATE_OVERHEAD_BUDGET": "1", "REPRO_GATE_FREE_SECONDS": "100"}
    outcome = harness.run(source, REPRO_GATE_MAX_STEPS="4", **most)
    assert outcome.code == 0, outcome.stderr
    lines = outcome.lines("steps")
    told = {}
    for number, name in enumerate(KINDS):
        steps = [line["fingerprints"] for line in lines if line["optimizer"] == number]
        first, again, other = (step.get("input") for step in steps)
        told[name] = "seen" if first == again != other else f"{first} {again} {other}"
    assert told == dict.fromkeys(KINDS, "seen")


def indented(source: str) -> str:
    return "".join(f"    {line}\n" for line in source.splitlines())
