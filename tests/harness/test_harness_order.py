"""The order of parameters, where tensors come and go."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

from gate.harness.recording import state as order_module  # noqa: E402 - it imports torch
from gate.harness.recording.state import TensorOrder, parameter_names  # noqa: E402 - as above

pytestmark = pytest.mark.torch


def test_a_parameter_that_has_the_number_of_one_that_is_gone_has_not_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # every parameter has the number of the one before it, as if its memory were given again
    monkeypatch.setattr(order_module, "id", lambda _: 7, raising=False)
    order = TensorOrder()
    module = torch.nn.Linear(2, 2, bias=False)
    order.learn(module)
    assert order.name(module.weight) == "Linear/weight"
    del module
    gc.collect()
    later = torch.nn.Parameter(torch.ones(2, 2))
    assert order.name(later) == ""
    optimizer = torch.optim.SGD([later, torch.nn.Parameter(torch.ones(5))])
    assert [len(parameter) for parameter in order.parameters(optimizer)] == [2, 5]


def test_the_numbers_of_parameters_have_the_names_that_they_have_in_the_state() -> None:
    order = TensorOrder()
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    order.learn(model)
    alone = torch.nn.Parameter(torch.ones(5))
    # a set has any order
    shuffled = [alone, *reversed(list(model.parameters()))]
    optimizers = [torch.optim.SGD(shuffled), torch.optim.SGD([model[1].bias])]
    names = parameter_names([model], optimizers, order)
    assert names == {
        "0/0": "model/0/0.weight",
        "0/1": "model/0/0.bias",
        "0/2": "model/0/1.weight",
        "0/3": "model/0/1.bias",
        "1/0": "model/0/1.bias",
    }
    parameters = dict(model.named_parameters(prefix="model/0"))
    numbered = order.parameters(optimizers[0])
    assert all(
        parameters[name.replace("model/0/", "model/0.")] is numbered[int(key[2:])]
        for key, name in names.items()
        if key.startswith("0/")
    )


def test_a_name_that_is_too_long_is_left_out_and_of_many_the_first_thousand_are_named() -> None:
    order = TensorOrder()
    model = torch.nn.ParameterDict({"x" * 201: torch.ones(1), "y": torch.ones(1)})
    many = torch.nn.ParameterList(torch.ones(1) for _ in range(1100))
    for module in (model, many):
        order.learn(module)
    optimizer = torch.optim.SGD([*model.parameters(), *many.parameters()])
    names = parameter_names([model, many], [optimizer], order)
    assert len(names) == 1000
    assert max(map(len, names.values())) < 200
