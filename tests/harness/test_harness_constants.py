"""Buffers that hold an infinity from the start on are told apart from those that got one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.harness.conftest import Harness

pytestmark = pytest.mark.torch

SCRIPT = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("bound", torch.tensor(float("inf")))
        self.register_buffer("mask", torch.triu(torch.full((4, 4), float("-inf")), 1))
        self.register_buffer("written", torch.tensor(float("inf")))
        self.register_buffer("replaced", torch.tensor(float("inf")))
        self.register_buffer("plain", torch.ones(3))
    def forward(self, x):
        self.written.data.copy_(-self.written)
        self.replaced = self.replaced * 1
        self.norm.running_var.data.fill_(float("inf"))
        return self.norm(self.layer(x))
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for step in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def test_only_what_never_changed_is_a_constant(harness: Harness) -> None:
    names = harness.run(SCRIPT).document("summary")["constant_infinities"]
    assert names == ["model/0/bound", "model/0/mask"]


def test_a_model_without_an_infinity_has_none(harness: Harness) -> None:
    plain = SCRIPT.replace('float("inf")', "1.0").replace('float("-inf")', "1.0")
    assert harness.run(plain).document("summary")["constant_infinities"] == []


# as libraries do whose modules are not called through `Module.__call__`
PAST_MODULE = SCRIPT.replace(
    "    def forward(self, x):",
    "    def __call__(self, x):\n        return self.forward(x)\n    def forward(self, x):",
).replace("self.norm(self.layer(x))", "self.layer.forward(x)")


def test_what_was_registered_counts_where_no_call_is_seen(harness: Harness) -> None:
    names = harness.run(PAST_MODULE).document("summary")["constant_infinities"]
    assert names == ["model/0/bound", "model/0/mask"]


FILLED_LATER = SCRIPT.replace(
    "model = Model()", "model = Model()\nmodel.plain.fill_(float('-inf'))"
)


def test_what_a_script_fills_before_the_first_call_is_a_constant_too(harness: Harness) -> None:
    names = harness.run(FILLED_LATER).document("summary")["constant_infinities"]
    assert names == ["model/0/bound", "model/0/mask", "model/0/plain"]
