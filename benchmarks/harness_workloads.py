"""The two trainings of the harness's benchmark, as scripts without any knowledge of the harness."""

from __future__ import annotations

MLP = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 384), nn.ReLU(),
                      nn.Linear(384, 32))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(100_000, 256), torch.randint(0, 32, (100_000,)))
for x, y in DataLoader(data, batch_size=128):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""

TRANSFORMER = """
import torch
from torch import nn
from torch.utils.data import DataLoader
layer = nn.TransformerEncoderLayer(384, 6, 1536, batch_first=True, norm_first=True)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(128, 384)
        self.body = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(384, 128)
    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens)))
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for tokens in DataLoader(torch.randint(0, 128, (4000, 65)), batch_size=4):
    logits = model(tokens[:, :-1])
    optimizer.zero_grad()
    nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()
"""

# Appended to a workload: digests each fingerprint alone, after three steps of the training.
FINGERPRINTS = """
import json, os, statistics, sys, time
from repro_gate_harness.tensor_digests import StartedDigest, finish_all, start_parameters
from repro_gate_harness.recording.observer import structure_digest
from repro_gate_harness.recording.state import TensorOrder
from repro_gate_harness.output import Problems
from repro_gate_harness.recording.observer import random_states
from repro_gate_harness.recording.state import named_tensors
from repro_gate_harness.tensor_digests import nested_digest
import random, numpy.random
problems = Problems()
order = TensorOrder()
order.learn(model)
parameters = list(model.parameters())
def fast(tensors):
    named = [(str(index), tensor) for index, tensor in enumerate(tensors)]
    return finish_all([StartedDigest(named, "", problems.note, fast=True)])
state = [value for one in optimizer.state.values() for value in one.values()]
batch = [x, y] if "x" in globals() else tokens
work = {
    "structure (once)": lambda: structure_digest(optimizer, order),
    "initial (once)": lambda: fast(parameters),
    "random states": lambda: random_states(problems),
    "batch": lambda: nested_digest(batch, problems.note),
    "gradients": lambda: fast([each.grad for each in parameters]),
    "parameters": lambda: finish_all([start_parameters(parameters, problems.note)]),
    "optimizer": lambda: fast(state),
}
taken = {name: [] for name in work}
with torch.no_grad():
    for _ in range(9):
        for name, digest in work.items():
            begun = time.perf_counter()
            digest()
            taken[name].append(time.perf_counter() - begun)
found = {name: statistics.median(seconds) for name, seconds in taken.items()}
found["count"] = sum(each.numel() for each in parameters)
print(json.dumps(found))
"""

# Prints the seconds to import torch, the seconds to make the first optimizer, and all modules then.
IMPORTS = """
import json, sys, time
began = time.perf_counter()
import torch
there = time.perf_counter()
torch.optim.AdamW(torch.nn.Linear(2, 2).parameters())
made = time.perf_counter()
print(json.dumps([there - began, made - there, sorted(sys.modules)]))
"""


def timed(script: str, steps: int, first: int) -> str:
    """Return the script, ended after `steps` steps, which prints CPU seconds per step.

    The mean starts after step `first`. It is the thread's own CPU time, which other work on the
    machine hardly changes.
    """
    step = "    optimizer.step()\n"
    end = (
        f"{step}    taken.append(time.thread_time())\n"
        f"    if len(taken) == {steps}:\n"
        f"        print((taken[-1] - taken[{first}]) / {steps - 1 - first})\n"
        "        break\n"
    )
    return "import time\ntaken = []\n" + script.replace(step, end)
