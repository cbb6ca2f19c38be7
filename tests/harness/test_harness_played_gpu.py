"""Processes that have started CUDA, or were forked from one that has, as torch itself tells it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.harness.conftest import Harness, Outcome

pytestmark = pytest.mark.torch
FORKED = """
import os, random
import torch
from torch import nn
from torch.utils.data import DataLoader
parent = os.getpid()
torch.cuda._is_in_bad_fork = lambda: os.getpid() != parent
def seed(worker):
    random.seed(worker)
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(batch):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""
READING = (
    FORKED
    + """
loader = DataLoader(
    torch.ones(8, 2), batch_size=2, num_workers=2, worker_init_fn=seed,
    multiprocessing_context="fork",
)
for batch in loader:
    train(batch)
"""
)
TRAINING = (
    FORKED
    + """
if os.fork() == 0:
    train(torch.ones(2, 2))
    raise SystemExit
os.wait()
"""
)
STARTED = """
import types
import torch
from torch import nn
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.cuda.is_initialized = lambda: True
torch.cuda.is_current_stream_capturing = lambda: False
torch.cuda.get_sync_debug_mode = lambda: 0
torch.cuda.initial_seed = lambda: 4321
torch.cuda.get_allocator_backend = lambda: "native"
torch.cuda.device_count = lambda: 1
torch.cuda.memory_stats = lambda index: {"reserved_bytes.all.peak": 1}
torch.cuda.get_device_properties = lambda index: types.SimpleNamespace(
    name="a played GPU", major=9, minor=0, multi_processor_count=132, total_memory=2**37
)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 2)).square().mean().backward()
    optimizer.step()
"""

DRAWN = """
from torch import Generator
torch.cuda.device_count = lambda: 3
torch.cuda.default_generators = tuple(Generator() for _ in range(3))
for step in range(3):
    optimizer.zero_grad()
    for device in DEVICES:
        torch.rand(1, generator=torch.cuda.default_generators[device])
    model(torch.ones(2, 2)).square().mean().backward()
    optimizer.step()
"""


def attested(outcome: Outcome) -> list[dict[str, Any]]:
    """What each process attested, the first one first."""
    found = [json.loads(path.read_bytes()) for path in outcome.out.glob("process-*.json")]
    return sorted(found, key=lambda each: int(each["pid"]))


def test_workers_that_only_read_may_be_forked_after_cuda_started(harness: Harness) -> None:
    """PyTorch's own recipe for seeding its workers, with a model on the GPU."""
    outcome = harness.run(READING)
    assert outcome.code == 0, outcome.stderr
    assert len(attested(outcome)) == 3
    assert [each["problems"] for each in attested(outcome)] == [[], [], []]
    assert outcome.document("summary")["problems"] == []


@pytest.mark.filterwarnings("ignore")
def test_a_process_that_trains_may_not(harness: Harness) -> None:
    outcome = harness.run(TRAINING)
    assert outcome.code == 0, outcome.stderr
    problem = "this process was forked after CUDA had been initialised"
    assert [each["problems"] for each in attested(outcome)] == [[], [problem]]


def test_the_device_and_its_seed_are_attested_once_it_has_started(harness: Harness) -> None:
    """When torch is imported there is neither."""
    outcome = harness.run(STARTED)
    assert outcome.code == 0, outcome.stderr
    (found,) = attested(outcome)
    expected = "a played GPU (compute capability 9.0, 132 multiprocessors, 128 GiB)"
    assert found["device"] == expected
    assert found["applied"]["seed_cuda"] == "4321"
    assert found["applied"]["deterministic_algorithms"] == "on"


@pytest.mark.parametrize("devices", [[], [0], [0, 2]])
def test_the_devices_whose_generators_are_drawn_from_are_counted(
    harness: Harness, devices: list[int]
) -> None:
    begun = STARTED.partition("for _ in range(3):")[0]
    outcome = harness.run(begun + DRAWN.replace("DEVICES", str(devices)))
    assert outcome.code == 0, outcome.stderr
    carried = outcome.document("summary")["carried"]
    assert carried["devices_drawn"] == len(devices)
    assert ("cuda" in carried["drawn"]) == bool(devices)
