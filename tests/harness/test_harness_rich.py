"""One training with two optimizers, data workers and tensors of many kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from tests.harness.conftest import Harness, Outcome

pytestmark = pytest.mark.torch

# The first optimizer takes a closure, the second owns a parameter of no module. It will not be
# stopped.
RICH = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("small", torch.tensor([1.5, -0.0], dtype=torch.float16))
        self.register_buffer("brain", torch.tensor([[1.5], [2.5]], dtype=torch.bfloat16))
        self.register_buffer("turned", torch.arange(6, dtype=torch.int16).reshape(2, 3).t())
        self.register_buffer("wave", torch.tensor([1 + 2j]).conj())
        self.register_buffer("flag", torch.tensor(True))
        self.register_buffer("empty", torch.zeros(0, 5))
        self.register_buffer("sparse", torch.eye(2).to_sparse())
        self.register_buffer("nowhere", torch.empty(2, device="meta"))

    def forward(self, x):
        return self.second(self.first(x))

outer = nn.ModuleDict({"model": Model()})
loose = nn.Parameter(torch.ones(2))
closure_steps = torch.optim.LBFGS(outer.parameters(), max_iter=3)
plain_steps = torch.optim.SGD([{"params": [loose], "lr": 0.5}], momentum=0.9)

def closure():
    closure_steps.zero_grad()
    loss = outer["model"](batch).square().mean()
    loss.backward()
    return loss

for (batch,) in DataLoader(TensorDataset(torch.randn(8, 3)), batch_size=2, num_workers=2):
    try:
        closure_steps.step(closure)
        plain_steps.zero_grad()
        loose.square().sum().backward()
        plain_steps.step()
    except SystemExit:
        print("would not be stopped")
"""


@pytest.fixture(scope="module")
def rich(harness: Harness) -> Outcome:
    return harness.run(RICH, REPRO_GATE_KNOBS="memory_fill=on")


def test_steps_are_counted_for_each_optimizer(rich: Outcome) -> None:
    steps = [(line["optimizer"], line["step"]) for line in rich.lines("steps")]
    assert steps == [(0, 1), (1, 1), (0, 2), (1, 2), (0, 3)]


def test_a_step_with_a_closure_counts_its_backwards(rich: Outcome) -> None:
    lines = rich.lines("steps")
    assert lines[0]["backwards"] > 1
    assert lines[1]["backwards"] == 1


def test_a_script_that_will_not_stop_records_nothing_more(rich: Outcome) -> None:
    assert rich.code == 0
    assert rich.stdout == "would not be stopped\n" * 2
    assert rich.document("summary")["steps"] == 3


def test_data_workers_write_nothing(rich: Outcome) -> None:
    assert rich.names() == ["ended", "process", "state", "steps", "summary"]


def test_fill_is_asked_for_by_its_own_variable(rich: Outcome) -> None:
    assert rich.document("process")["applied"]["memory_fill"] == "on"


def test_the_outermost_module_gives_the_names(rich: Outcome) -> None:
    names = [name for name in rich.state() if name.startswith("model/")]
    assert all(name.startswith("model/0/model.") for name in names)


def test_shared_tensors_are_written_under_each_name(rich: Outcome) -> None:
    state = rich.state()
    assert state["model/0/model.first.weight"] == state["model/0/model.second.weight"]


def test_tensors_of_every_kind_keep_their_logical_bytes(rich: Outcome) -> None:
    state = rich.state()
    turned = torch.arange(6, dtype=torch.int16).reshape(2, 3).t().contiguous().numpy().tobytes()
    expected = {
        "small": ("F16", (2,), b"\x00\x3e\x00\x80"),
        "brain": ("BF16", (2, 1), b"\xc0\x3f\x20\x40"),
        "turned": ("I16", (3, 2), turned),
        "wave": ("C64", (1,), torch.tensor([1 - 2j]).numpy().tobytes()),
        "flag": ("BOOL", (), b"\x01"),
        "empty": ("F32", (0, 5), b""),
    }
    assert {name: state[f"model/0/model.{name}"] for name in expected} == expected


def test_a_sparse_tensor_is_kept_as_its_indices_and_values(rich: Outcome) -> None:
    state = rich.state()
    indices = ("I64", (2, 2), torch.tensor([[0, 1], [0, 1]]).numpy().tobytes())
    assert state["model/0/model.sparse/indices"] == indices
    assert state["model/0/model.sparse/values"][:2] == ("F32", (2,))


def test_a_tensor_that_cannot_be_read_is_left_out_and_told_and_no_problem(rich: Outcome) -> None:
    assert "model/0/model.nowhere" not in rich.state()
    summary = rich.document("summary")
    assert summary["problems"] == []
    why = "tensors without plain memory are not supported"
    assert summary["left_out"] == [f"model/0/model.nowhere is left out of the state: {why}"]


def test_lists_of_tensors_in_an_optimizer_are_kept(rich: Outcome) -> None:
    state = rich.state()
    assert "optimizer/0/state/0/old_dirs/0" in state
    assert state["optimizer/0/state/0/n_iter"][0] == "I64"


def test_each_optimizer_has_its_own_state(rich: Outcome) -> None:
    state = rich.state()
    assert "optimizer/1/state/0/momentum_buffer" in state
    assert "parameter/1/0" in state
