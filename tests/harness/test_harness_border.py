"""What a process tells at the border: of a run that is ended there, and of one that goes on."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from each_row import each_row

from gate.harness.lifecycle.preemption import ranks_here

if TYPE_CHECKING:
    from tests.harness.conftest import Harness

pytestmark = pytest.mark.torch
# a thread that has begun to save, and never comes to the end of it
SAVING = """
import io, threading
import torch
begun = threading.Event()
class Slow(io.FileIO):
    def write(self, data):
        begun.set()
        threading.Event().wait()
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def save():
    torch.save(model.state_dict(), Slow(PATH, "w"))
threading.Thread(target=save, daemon=True).start()
begun.wait()
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 2)).square().mean().backward()
    optimizer.step()
"""
# stands for a thread that comes to the end of its save while the harness writes its files
LATE = """
import torch
steps = 0
class Model(torch.nn.Linear):
    def state_dict(self, *args, **kwargs):
        if steps == 2:
            with open(PATH, "a") as file:
                file.write("saved")
        return super().state_dict(*args, **kwargs)
model = Model(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 2)).square().mean().backward()
    optimizer.step()
    steps += 1
"""
# the second optimizer steps after a backward pass of its own
TWO = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
critic = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
second = torch.optim.SGD(critic.parameters(), lr=0.1, momentum=0.9)
for _ in range(3):
    for one in (optimizer, second):
        one.zero_grad()
        critic(model(torch.randn(4, 2))).square().mean().backward()
        one.step()
"""


@pytest.mark.parametrize(
    ("saved", "writing", "beside"),
    [
        ("last.pt", ["last.pt"], []),
        ("last.pt.part", ["last.pt.part"], []),
        ("last.part", [], ["last.part"]),
        ("new", [], ["new"]),
    ],
)
def test_a_save_of_a_thread_that_was_cut_is_told(
    harness: Harness, tmp_path: Path, saved: str, writing: list[str], beside: list[str]
) -> None:
    outcome = harness.run(
        SAVING.replace("PATH", repr(str(tmp_path / saved))),
        REPRO_GATE_PREEMPT_STEP="2",
        REPRO_GATE_PREEMPT_PATH=str(tmp_path / "last.pt"),
    )
    assert outcome.code == -signal.SIGTERM, outcome.stderr
    border = outcome.document("boundary")
    assert (border["steps"], border["writing"], border["beside"]) == (2, writing, beside)


def test_a_save_that_comes_to_its_end_while_the_harness_writes_is_too_late(
    harness: Harness, tmp_path: Path
) -> None:
    path = str(tmp_path / "last.pt")
    outcome = harness.run(
        LATE.replace("PATH", repr(path)),
        REPRO_GATE_PREEMPT_STEP="2",
        REPRO_GATE_PREEMPT_PATH=path,
    )
    assert outcome.code == -signal.SIGTERM, outcome.stderr
    border = outcome.document("boundary")
    assert (border["writing"], border["before_update"]) == (["last.pt"], True)


def test_each_optimizer_of_a_resumed_run_is_told_before_its_own_first_step(
    harness: Harness,
) -> None:
    outcome = harness.run(TWO, REPRO_GATE_RESUMED="1")
    assert outcome.code == 0, outcome.stderr
    border = outcome.document("boundary")
    assert (border["steps"], border["optimizers"]) == (1, 2)
    # nothing was loaded, and none had stepped when it was told
    assert not [name for name in border["digests"] if "/state/" in name]
    assert {"model/0/0.weight", "model/1/0.weight"} <= border["digests"].keys()
    groups = [name for name in border["digests"] if name.startswith("optimizer/1/group/0/")]
    assert "optimizer/1/group/0/lr" in groups


def test_buffers_of_a_model_that_is_told_later_are_left_out(harness: Harness) -> None:
    digests = harness.run(TWO, REPRO_GATE_RESUMED="1").document("boundary")["digests"]
    buffers = [name for name in digests if "running_mean" in name]
    assert buffers == ["model/0/1.running_mean"]
    ended = harness.run(TWO, REPRO_GATE_PREEMPT_STEP="2", REPRO_GATE_PREEMPT_PATH="last.pt")
    digests = ended.document("boundary")["digests"]
    assert {"model/0/1.running_mean", "model/1/1.running_mean"} <= digests.keys()
    assert "optimizer/1/state/0/momentum_buffer" in digests


def test_an_optimizer_that_begins_later_leaves_the_digest_of_the_weights_as_it_was(
    harness: Harness,
) -> None:
    later = TWO.replace(
        "for one in (optimizer, second):", "for one in (optimizer, second)[: _ + 1]:"
    )
    borders = [
        harness.run(source, REPRO_GATE_RESUMED="1").document("boundary")
        for source in (later, TWO.replace("(optimizer, second):", "(optimizer,):"))
    ]
    assert [border["optimizers"] for border in borders] == [2, 1]
    assert borders[0]["parameters"] == borders[1]["parameters"]


@each_row(
    ("world_size", "local", "expected"),
    [
        (8, "2", 2),
        (8, "", 8),
        (8, "8", 8),
        (1, "2", 1),
        (8, "0", 8),
        (8, "two", 8),
        (8, "9" * 9, 8),
    ],
)
def test_a_rank_waits_for_those_of_its_own_machine(
    world_size: int, local: str, expected: int
) -> None:
    assert ranks_here(world_size, {"LOCAL_WORLD_SIZE": local}) == expected
