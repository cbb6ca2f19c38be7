"""The loss of a step, however its gradients are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.harness.conftest import Harness, Outcome

pytestmark = pytest.mark.torch

# Each step asks for its gradients in another way, under the name that it has here.
WAYS = """
import torch
from torch.utils.checkpoint import checkpoint

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def assign(gradients):
    for parameter, gradient in zip(model.parameters(), gradients):
        parameter.grad = gradient

def method():
    loss.backward()

def function():
    torch.autograd.backward(loss)

def list_by_name():
    torch.autograd.backward(tensors=[loss])

def iterator():
    torch.autograd.backward(iter([loss]))

def two_roots():
    torch.autograd.backward([loss, loss])

def reentrant_checkpoint():
    # the inner part is run again in the backward pass, by a pass of its own
    again = checkpoint(model, inputs.requires_grad_(), use_reentrant=True)
    again.square().mean().backward()

def gradient_penalty():
    (slope,) = torch.autograd.grad(loss, model.bias, create_graph=True)
    (loss + 0 * slope.square().sum()).backward()

def assigned():
    assign(torch.autograd.grad(loss, list(model.parameters())))

def assigned_from_an_iterator():
    assign(torch.autograd.grad(outputs=loss, inputs=model.parameters()))

def by_torch_func():
    def of(parameters):
        return torch.func.functional_call(model, parameters, inputs).square().mean()
    assign(torch.func.grad(of)(dict(model.named_parameters())).values())

@torch.compile(backend="eager")
def compiled():
    assign(torch.autograd.grad(loss, tuple(model.parameters())))

WAYS = (method, function, list_by_name, iterator, two_roots, reentrant_checkpoint,
        gradient_penalty, assigned, assigned_from_an_iterator, by_torch_func, compiled)
for way in WAYS:
    optimizer.zero_grad()
    inputs = torch.randn(8, 4)
    loss = model(inputs).square().mean()
    print(way.__name__, loss.item().hex())
    way()
    optimizer.step()
"""

# A scaler with a `scale` of its own, which does not call its parent's.
SHARDED = """
import os
import torch
import torch.distributed as dist
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

meeting = f"file://{os.getcwd()}/meeting"
dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = ShardedGradScaler("cpu", init_scale=1024.0, growth_interval=1)
for step in range(1, 4):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).square().mean()
    print(loss.item().hex())
    scaler.scale(loss).backward()
    if step == 2:
        model.weight.grad.fill_(float("inf"))
    scaler.step(optimizer)
    scaler.update()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def ways(harness: Harness) -> Outcome:
    return harness.run(WAYS, REPRO_GATE_MAX_STEPS="99")


def step_of(outcome: Outcome, way: str) -> tuple[str, dict[str, Any]]:
    """The loss that a step printed, and its line."""
    printed = dict(line.split() for line in outcome.stdout.splitlines())
    return printed[way], outcome.lines("steps")[list(printed).index(way)]


def losses(line: dict[str, Any]) -> list[str]:
    return [loss["hex"] for loss in line["losses"]]


@pytest.mark.parametrize(
    "way",
    [
        *("method", "function", "list_by_name", "iterator", "reentrant_checkpoint"),
        "gradient_penalty",
    ],
)
def test_a_backward_pass_is_noted_once_with_its_loss(ways: Outcome, way: str) -> None:
    printed, line = step_of(ways, way)
    assert losses(line) == [printed]
    assert line["backwards"] == 1


def test_each_root_of_one_backward_pass_is_a_loss(ways: Outcome) -> None:
    printed, line = step_of(ways, "two_roots")
    assert losses(line) == [printed, printed]


@pytest.mark.parametrize("way", ["assigned", "assigned_from_an_iterator", "compiled"])
def test_gradients_that_the_script_assigns_bring_their_loss(ways: Outcome, way: str) -> None:
    printed, line = step_of(ways, way)
    assert losses(line) == [printed]
    assert line["backwards"] == 0


def test_what_torch_func_derives_has_no_loss(ways: Outcome) -> None:
    _, line = step_of(ways, "by_torch_func")
    assert line["loss"] is None


def test_no_way_is_a_problem(ways: Outcome) -> None:
    assert ways.code == 0
    assert ways.document("summary")["problems"] == []


def test_a_scaler_with_a_scale_of_its_own_is_seen_through(harness: Harness) -> None:
    outcome = harness.run(SHARDED)
    assert outcome.code == 0, outcome.stderr
    lines = outcome.lines("steps")
    assert [line["loss"]["hex"] for line in lines] == outcome.stdout.split()
    assert [line["skipped"] for line in lines] == [False, True, False]
    assert {"scaler/0/scale", "scaler/0/_growth_tracker"} <= set(outcome.state())
    assert outcome.document("summary")["problems"] == []
