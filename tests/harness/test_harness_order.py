"""The order of parameters, where tensors come and go."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

from gate.harness.recording.order import Order  # noqa: E402 - it imports torch

pytestmark = pytest.mark.torch


def test_a_parameter_that_has_the_number_of_one_that_is_gone_has_not_its_name() -> None:
    order = Order()
    module = torch.nn.Linear(2, 2)
    order.learn(module)
    assert order.name(module.weight) == "Linear/weight"
    numbers = {id(parameter) for parameter in module.parameters()}
    del module
    gc.collect()
    later = [torch.nn.Parameter(torch.ones(2, 2)) for _ in range(1000)]
    again = [parameter for parameter in later if id(parameter) in numbers]
    assert again, "no number was given again, so nothing was tried"
    assert {order.name(parameter) for parameter in later} == {""}
    optimizer = torch.optim.SGD([again[0], torch.nn.Parameter(torch.ones(5))])
    assert [len(parameter) for parameter in order.parameters(optimizer)] == [2, 5]
