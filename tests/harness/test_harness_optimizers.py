"""Optimizers of every make, what they work on, and where in a step they step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.harness.conftest import Harness, Outcome

pytestmark = pytest.mark.torch

# `capturable` is for devices alone: torch refuses it here.
MAKES = """
import torch
from torch import nn, optim

class Rotation(nn.Module):
    def __init__(self):
        super().__init__()
        self.turn = nn.Parameter(torch.tensor([1 + 1j, 2 - 1j]))
    def forward(self, x):
        return (x[:, :2] * self.turn).abs()

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 3, sparse=True)
    def forward(self, x):
        return self.words(torch.tensor([1, 4, 1]))

class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(2, 2, 2).to(memory_format=torch.channels_last)
    def forward(self, x):
        return self.layer(x.view(4, 2, 2, 2).to(memory_format=torch.channels_last))

def all_of(model, make, **options):
    return model, make(model.parameters(), lr=options.pop("lr", 0.1), **options)

trained = [
    all_of(nn.Linear(8, 1), optim.AdamW, foreach=False),
    all_of(nn.Linear(8, 1), optim.AdamW, foreach=True),
    all_of(nn.Linear(8, 1), optim.AdamW, fused=True, amsgrad=True),
    all_of(nn.Linear(8, 1), optim.SGD, fused=True, momentum=0.9),
    all_of(nn.Linear(8, 1).to(torch.bfloat16), optim.Adafactor),
    all_of(nn.Linear(8, 1), optim.Adam, lr=torch.tensor(0.1)),
    all_of(Image(), optim.AdamW, foreach=True),
    all_of(Image(), optim.SGD, fused=True),
    all_of(Rotation(), optim.Adam),
    all_of(Words(), optim.SparseAdam),
]
for step in range(5):
    for model, optimizer in trained:
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8).to(next(model.parameters()).dtype)).square().mean()
        print(loss.item().hex(), flush=True)
        loss.backward()
        optimizer.step()
"""

# Gradients never live together: each parameter is stepped as soon as its own is there.
IN_BACKWARD = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
optimizers = {each: torch.optim.AdamW([each], fused=True) for each in model.parameters()}

def update(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()

for each in model.parameters():
    each.register_post_accumulate_grad_hook(update)
for step in range(5):
    loss = model(torch.randn(4, 8)).square().mean()
    print(loss.item().hex(), flush=True)
    loss.backward()
"""

# A pass that fails beside one that does not: its loss belongs to no step.
FAILING = """
import torch
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.1)
refusing = torch.nn.Parameter(torch.ones(3))

def refuse(gradient):
    raise RuntimeError("refused")

refusing.register_hook(refuse)
for step in range(5):
    try:
        (refusing.sum() * 7).backward()
    except RuntimeError:
        pass
    loss = weight.square().sum()
    print(loss.item().hex(), flush=True)
    loss.backward()
    optimizer.step()
"""

# One fold after the other, each with a closure; only the values tell the models apart.
FOLDS = """
import torch
for start in (3.0, 1.0, 2.0):
    weight = torch.nn.Parameter(torch.full((2,), start))
    optimizer = torch.optim.LBFGS([weight], lr=0.01, max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = weight.pow(4).sum()
        loss.backward()
        return loss

    for step in range(2):
        optimizer.step(closure)
"""


@pytest.fixture(scope="module")
def makes(harness: Harness) -> Outcome:
    return harness.run(MAKES, REPRO_GATE_FREE_SECONDS="10000")


@pytest.fixture(scope="module")
def in_backward(harness: Harness) -> Outcome:
    return harness.run(IN_BACKWARD, REPRO_GATE_FREE_SECONDS="10000")


def test_every_make_is_recorded_at_every_step_with_its_loss(makes: Outcome) -> None:
    assert (makes.code, makes.stderr) == (0, "")
    lines = makes.lines("steps")
    # the first to take the last step ends the run
    assert [(line["step"], line["optimizer"]) for line in lines] == [
        *((step, optimizer) for step in (1, 2) for optimizer in range(10)),
        (3, 0),
    ]
    assert [line["loss"]["hex"] for line in lines] == makes.stdout.split()
    assert all(line["parameters"] for line in lines)


def test_no_make_is_a_problem_or_left_out(makes: Outcome) -> None:
    summary = makes.document("summary")
    assert (summary["problems"], summary["left_out"]) == ([], [])


def test_sparse_and_complex_states_are_kept(makes: Outcome) -> None:
    state = makes.state()
    assert state["model/8/turn"][0] == "C64"
    assert state["optimizer/9/state/0/exp_avg"][:2] == ("F32", (9, 3))
    assert state["model/6/layer.weight"][:2] == ("F32", (2, 2, 2, 2))


def test_a_step_inside_a_backward_pass_has_the_loss_of_that_pass(in_backward: Outcome) -> None:
    assert (in_backward.code, in_backward.stderr) == (0, "")
    lines = in_backward.lines("steps")
    assert [(line["step"], line["optimizer"]) for line in lines] == [
        (step, optimizer) for step in (1, 2, 3) for optimizer in range(4)
    ]
    first = [line for line in lines if line["optimizer"] == 0]
    assert [line["loss"]["hex"] for line in first] == in_backward.stdout.split()
    assert [line["backwards"] for line in lines] == [1, 0, 0, 0] * 3


def test_each_of_them_is_observed_and_none_is_a_problem(in_backward: Outcome) -> None:
    lines = in_backward.lines("steps")
    assert len({line["parameters"] for line in lines}) == 12
    assert len({line["fingerprints"]["gradients"] for line in lines}) == 12
    assert in_backward.document("summary")["problems"] == []


def test_one_such_step_is_enough_for_a_loss(harness: Harness) -> None:
    (first, *_) = harness.run(IN_BACKWARD, REPRO_GATE_MAX_STEPS="1").lines("steps")
    assert first["loss"] is not None


def test_a_backward_pass_that_failed_has_no_loss(harness: Harness) -> None:
    outcome = harness.run(FAILING)
    lines = outcome.lines("steps")
    assert [line["loss"]["hex"] for line in lines] == outcome.stdout.split()
    assert [line["backwards"] for line in lines] == [1, 1, 1]


def test_optimizers_with_closures_keep_the_order_in_which_they_train(harness: Harness) -> None:
    assert harness.run(FOLDS).document("summary")["optimizer_numbers"] == [0, 1, 2]
