"""How many samples the harness counts in what a DataLoader yields."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from gate.harness.recording.given import samples_in

if TYPE_CHECKING:
    from tests.harness.conftest import Harness

pytestmark = pytest.mark.torch

TRAINING = """
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(10, 3), torch.randn(10, 1))
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in DataLoader(data, batch_size=4):
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    optimizer.step()
"""
ACCUMULATED = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(3, 1)
critic = torch.nn.Linear(3, 1)
pair = [torch.optim.SGD(part.parameters(), lr=0.01) for part in (model, critic)]
loader = iter(DataLoader(torch.randn(40, 3), batch_size=4))
while True:
    for part in pair:
        part.zero_grad()
    for _ in range(2):
        x = next(loader)
        (model(x) + critic(x)).square().mean().backward()
    for part in pair:
        part.step()
"""


IN_A_THREAD = """
import queue, threading, torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = queue.Queue()
def draw():
    for batch in DataLoader(TensorDataset(torch.randn(12, 3), torch.randn(12, 1)), batch_size=4):
        batches.put(batch)
def train():
    for _ in range(3):
        x, y = batches.get()
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
"""
AHEAD = f"{IN_A_THREAD}threading.Thread(target=draw).start()\ntrain()\n"
IN_ONE = f"""{IN_A_THREAD}
def both():
    for batch in DataLoader(TensorDataset(torch.randn(12, 3), torch.randn(12, 1)), batch_size=4):
        batches.put(batch)
        (model(batch[0]) - batch[1]).square().mean().backward()
        optimizer.step()
only = threading.Thread(target=both)
only.start()
only.join()
"""


class Raising(OrderedDict[str, torch.Tensor]):
    """A batch of the training's own that answers nothing."""

    def values(self) -> NoReturn:
        raise KeyError


def steps(harness: Harness, source: str, **variables: str) -> list[tuple[int, int | None]]:
    lines = harness.run(source, **variables).lines("steps")
    return [(line["step"], line["samples"]) for line in lines]


def test_each_step_counts_what_was_read_for_it(harness: Harness) -> None:
    assert steps(harness, TRAINING) == [(1, 4), (2, 4), (3, 2)]


def test_a_run_that_is_not_observed_counts_too(harness: Harness) -> None:
    assert steps(harness, TRAINING, REPRO_GATE_OBSERVE="off") == [(1, 4), (2, 4), (3, 2)]


def test_accumulated_batches_add_up_and_stand_once(harness: Harness) -> None:
    counted = steps(harness, ACCUMULATED, REPRO_GATE_MAX_STEPS="2")
    assert sorted(counted, reverse=True) == [(2, 8), (2, 0), (1, 8), (1, 0)]


def test_what_a_thread_draws_ahead_is_counted_for_no_step(harness: Harness) -> None:
    lines = harness.run(AHEAD).lines("steps")
    assert [(line["step"], line["samples"], line["rows"]) for line in lines] == [
        (1, None, 4),
        (2, None, 4),
        (3, None, 4),
    ]
    seen = [line["fingerprints"] for line in lines]
    assert all("batch" not in one and "input" in one for one in seen)


def test_a_thread_that_draws_and_trains_is_as_good_as_any(harness: Harness) -> None:
    lines = harness.run(IN_ONE).lines("steps")
    assert [(line["step"], line["samples"]) for line in lines] == [(1, 4), (2, 4), (3, 4)]
    assert all("batch" in line["fingerprints"] for line in lines)


def test_what_no_loader_put_together_has_no_size(harness: Harness) -> None:
    source = TRAINING.replace("batch_size=4", "batch_size=None")
    assert {samples for _, samples in steps(harness, source)} == {None}


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(7, 3), 7),
        ([torch.zeros(7, 3), np.zeros(7)], 7),
        ({"x": torch.zeros(7), "names": ["a"] * 1000, "scale": torch.tensor(2.0)}, 7),
        ([{"x": torch.zeros(5)}, (torch.zeros(5, 2),)], 5),
        (torch.nested.nested_tensor([torch.ones(2)] * 3, layout=torch.jagged), 3),
        ([torch.zeros(7), torch.zeros(8)], None),
        (pack_sequence([torch.zeros(3), torch.zeros(2)]), None),
        (torch.tensor(1.0), None),
        (["a", "b"], None),
        (Raising(), None),
        (torch.empty(1).expand(2**33), None),
    ],
)
def test_the_first_dimension_that_all_tensors_share(batch: object, samples: int | None) -> None:
    assert samples_in(batch) == samples


def test_a_batch_without_end_is_left_after_some_parts() -> None:
    endless: list[object] = []
    endless += [endless] * 100
    assert samples_in(endless) is None
    assert samples_in([torch.zeros(2)] + [torch.zeros(3)] * 10**6) is None


BY_HAND = """
import torch
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(40, 3)
for step in range(3):
    optimizer.zero_grad()
    for part in range(2):
        model(data[step * 8 + part * 4 : step * 8 + part * 4 + 4]).square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        model(data)
"""


@pytest.mark.parametrize("observe", [True, False])
def test_of_batches_that_are_cut_by_hand_the_first_dimension_is_told(
    harness: Harness, *, observe: bool
) -> None:
    # an evaluation is none of the step's work
    variables = {} if observe else {"REPRO_GATE_OBSERVE": "off"}
    lines = harness.run(BY_HAND, **variables).lines("steps")
    assert [(line["samples"], line["rows"]) for line in lines] == [(0, 8)] * 3
