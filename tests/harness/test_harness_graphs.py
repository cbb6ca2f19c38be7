"""CUDA graphs, captured and replayed by methods that stand for those of torch's C++ class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from tests.harness.conftest import Harness, Outcome

# a build with CUDA has the class in C++, whose methods nothing can stand for
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        torch.version.cuda is not None, reason="a graph can be played only by a build without CUDA"
    ),
]

# What a graph does on a device: its Python runs once, at the capture, its kernels at each replay.
PLAYED = """
import types
import torch
from torch import nn
capturing = False
def begin(self):
    global capturing
    capturing = True
def end(self):
    global capturing
    capturing = False
base = torch.cuda.CUDAGraph.__mro__[1]
base.capture_begin, base.capture_end, base.replay = begin, end, lambda self: work()
graph = object.__new__(torch.cuda.CUDAGraph)
graph._tracker = None

import repro_gate_harness.cuda
repro_gate_harness.cuda._cuda = types.SimpleNamespace(
    is_initialized=lambda: True,
    is_current_stream_capturing=lambda: capturing,
    get_sync_debug_mode=lambda: 0,
    default_generators=(),
    _is_in_bad_fork=lambda: False,
)
torch.cuda.initial_seed = lambda: 0
for name in ("tolist", "item", "clone", "contiguous", "__float__"):
    def refusing(self, *args, plain=getattr(torch.Tensor, name), name=name, **kwargs):
        assert not capturing or "optim" in __import__("traceback").format_stack()[-2], name
        return plain(self, *args, **kwargs)
    setattr(torch.Tensor, name, refusing)

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(8, 4)
def forward():
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    return loss
"""
WHOLE_STEP = (
    PLAYED
    + """
for _ in range(3):
    forward()
    optimizer.step()
begin(graph)
loss = forward().detach()
optimizer.step()
graph.capture_end()
def work():
    with torch.no_grad():
        loss.add_(1)
        for parameter in model.parameters():
            parameter.add_(0.5)
for _ in range(20):
    graph.replay()
print("not stopped")
"""
)
FORWARD_ONLY = (
    PLAYED
    + """
begin(graph)
loss = forward().detach()
graph.capture_end()
def work():
    with torch.no_grad():
        loss.fill_(3.0)
for _ in range(2):
    graph.replay()
    optimizer.step()
"""
)


def problems_of_observing(outcome: Outcome) -> list[str]:
    """But for what no played device can tell of itself: its name, its driver."""
    problems: list[str] = outcome.document("summary")["problems"]
    about = ("reading the environment", "describing this process")
    return [problem for problem in problems if not problem.startswith(about)]


def test_steps_inside_a_graph_are_undisturbed_and_recorded_at_each_replay(harness: Harness) -> None:
    outcome = harness.run(WHOLE_STEP, REPRO_GATE_MAX_STEPS="8", REPRO_GATE_FREE_SECONDS="60")
    assert (outcome.code, outcome.stdout) == (0, ""), outcome.stderr
    lines = outcome.lines("steps")
    assert [line["step"] for line in lines] == list(range(1, 9))
    replayed = [float.fromhex(line["loss"]["hex"]) for line in lines[3:]]
    assert replayed == [replayed[0] + step for step in range(5)]
    assert len({line["parameters"] for line in lines}) == 8
    assert all("gradients" in line["fingerprints"] for line in lines[:3])
    assert not any("gradients" in line["fingerprints"] for line in lines[3:])
    assert outcome.document("summary")["left_out"] == [
        "the gradients of steps inside a CUDA graph are left out"
    ]
    assert problems_of_observing(outcome) == []


def test_a_loss_captured_without_the_step_is_that_of_the_step_after_the_replay(
    harness: Harness,
) -> None:
    outcome = harness.run(FORWARD_ONLY)
    assert outcome.code == 0, outcome.stderr
    losses = [float.fromhex(line["loss"]["hex"]) for line in outcome.lines("steps")]
    assert losses == [3.0, 3.0]
    assert problems_of_observing(outcome) == []


FAILED_CAPTURE = (
    PLAYED
    + """
def fail(self):
    end(self)
    raise RuntimeError("the capture is not valid")
begin(graph)
forward()
base.capture_end = fail
try:
    graph.capture_end()
except RuntimeError:
    base.capture_end = end
begin(graph)
graph.capture_end()
work = lambda: None
graph.replay()
optimizer.zero_grad()
model(data).square().mean().backward()
optimizer.step()
"""
)


def test_what_a_failed_capture_saw_is_no_part_of_the_next_one(harness: Harness) -> None:
    outcome = harness.run(FAILED_CAPTURE)
    assert outcome.code == 0, outcome.stderr
    (line,) = outcome.lines("steps")
    assert line["backwards"] == 1
