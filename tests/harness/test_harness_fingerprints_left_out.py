"""A training that holds what cannot be read: compared without it, and told; never of nothing."""

from __future__ import annotations

import pytest
from evidence_cases import settings_of
from harness_runs import HarnessRuns

from gate.comparison.compare import compare_results
from gate.errors import EvidenceError

pytestmark = pytest.mark.torch

# Weights of a kind that one kernel alone could read; its optimizer keeps its own books.
OPAQUE = """
import os
import torch
from torch import nn

class Opaque(torch.Tensor):
    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (2, 2), dtype=torch.bfloat16)
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(f"no kernel for {func}")

class Own(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})
    def step(self, closure=None):
        for group in self.param_groups:
            for each in group["params"]:
                if type(each) is nn.Parameter:
                    each.data -= 0.1 * each.grad
                self.state[each]["opaque"] = Opaque()
                self.state[each]["count"] = 1

weight = nn.Parameter(torch.ones(3))
optimized = [Opaque()] if os.environ.get("SET_ALONE") else [weight, Opaque()]
optimizer = Own(optimized)
for _ in range(9):
    weight.grad = None
    weight.square().sum().backward()
    optimizer.step()
"""
WHY = "Opaque does not name its inner tensors"


def test_what_cannot_be_read_is_told_and_the_rest_is_compared(runs: HarnessRuns) -> None:
    first, second = runs.run(OPAQUE), runs.run(OPAQUE)
    assert first.notes == ()
    # bfloat16 stands before float32 where no module has names for them
    assert f"parameter 0 is left out of the digest: {WHY}" in first.left_out
    assert f"optimizer/0/state/1/opaque is left out of the state: {WHY}" in first.left_out
    assert len(first.steps) == 4
    assert all(step.parameters for step in first.steps)
    settings = settings_of().compare
    comparison = compare_results(first, second, settings, ("strict-1", "strict-2"))
    assert comparison.numerically_equal
    assert comparison.compared_steps == 4


def test_a_run_of_whose_weights_nothing_can_be_read_is_an_error(runs: HarnessRuns) -> None:
    with pytest.raises(EvidenceError) as caught:
        runs.run(OPAQUE, SET_ALONE="1")
    assert caught.value.message == "the harness could not observe everything (1 problem)"
    assert caught.value.details == (
        "rank 0: no optimized parameter can be read, so nothing of the weights was compared",
    )
