"""Parameters and optimizers that come in a different order in each run, as those of a `set` do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from evidence_cases import settings_of

from gate.comparison.compare import compare_results
from gate.comparison.differences import Comparison

if TYPE_CHECKING:
    from harness_runs import HarnessRuns

pytestmark = pytest.mark.torch

BEGIN = """
import os
import torch
order, plus = int(os.environ["SET_ORDER"]), float(os.environ.get("SET_PLUS", "0"))
torch.manual_seed(3)
"""
TRAIN = """
for step in range(4):
    for one in optimizers:
        one.zero_grad()
    loss = sum((number * each * step + each).square().sum() for number, each in enumerate(leaves))
    loss.backward()
    with torch.no_grad():
        leaves[1].grad.add_(plus)
    for one in optimizers:
        one.step()
"""
# Of the same shape and the same first values: nothing but what is done to them tells them apart.
SCRIPTS = {
    "an optimizer for each tensor": """
leaves = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)] + [torch.nn.Parameter(torch.ones(5))]
optimizers = [torch.optim.Adam([each]) for each in leaves][::order]
""",
    "one optimizer of tensors": """
leaves = [torch.nn.Parameter(torch.ones(2)) for _ in range(4)]
optimizers = [torch.optim.Adam(leaves[::order])]
""",
    "one optimizer of a model": """
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
leaves = list(model.parameters())
optimizers = [torch.optim.Adam(leaves[::order])]
""",
    "an optimizer for each of two equal models": """
models = [torch.nn.Linear(2, 2) for _ in range(2)]
leaves = [each for model in models for each in model.parameters()]
optimizers = [torch.optim.Adam(model.parameters()) for model in models][::order]
""",
}


def compared(runs: HarnessRuns, script: str, plus: str = "0") -> Comparison:
    source = BEGIN + script + TRAIN
    first, second = (
        runs.run(source, SET_ORDER="1"),
        runs.run(source, SET_ORDER="-1", SET_PLUS=plus),
    )
    return compare_results(first, second, settings_of().compare, ("strict-1", "strict-2"))


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_equal_values_in_another_order_are_equal_evidence(runs: HarnessRuns, script: str) -> None:
    found = compared(runs, script)
    assert found.numerically_equal
    assert found.fingerprints == ()
    assert found.compared_steps == 4
    assert {"gradients", "initial", "optimizer", "parameters"} <= set(found.compared_fingerprints)


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_other_values_are_still_found(runs: HarnessRuns, script: str) -> None:
    assert not compared(runs, script, plus="0.5").numerically_equal


UNLIKE = """
models = [torch.nn.Linear(4, 8), torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)]
leaves = [each for model in models for each in model.parameters()]
optimizers = [torch.optim.SGD(leaves)]
"""


@pytest.mark.parametrize("plus", ["0.5", "-0.5", "3", "7"])
def test_another_gradient_is_no_other_structure_and_no_other_start(
    runs: HarnessRuns, plus: str
) -> None:
    """Modules of one kind, some of one shape: they keep their order, whatever a step gives them."""
    source = BEGIN + UNLIKE + TRAIN + "for model in models: model(torch.ones(1, model.in_features))"
    first, second = (runs.run(source, SET_ORDER="1", SET_PLUS=number) for number in ("0", plus))
    found = compare_results(first, second, settings_of().compare, ("strict-1", "strict-2"))
    assert found.events[0].kind == "gradients"
