"""Trainings that cannot be judged are ended early, and by a count, never by time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.harness.conftest import Harness

pytestmark = pytest.mark.torch

BY_HAND = """
import torch
weight = torch.ones(2, requires_grad=True)
for number in range(1, 10**6):
    weight.square().sum().backward()
    print(number, flush=True)
    weight.data.sub_(0.001 * weight.grad)
    weight.grad = None
"""
NEVER = """
import torch
weight = torch.ones(2, requires_grad=True)
for number in range(1, 10**6):
    weight.square().sum().backward()
    print(number, flush=True) if number > 1990 else None
"""
ACCUMULATING = """
import torch
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(3):
    for _ in range(900):
        weight.sum().backward()
    optimizer.step()
"""
RACING = """
import os, subprocess, sys
import torch
if len(sys.argv) == 1:
    others = [subprocess.Popen([sys.executable, __file__, "worker"]) for _ in range(2)]
    codes = [other.wait() for other in others]
    print(codes)
else:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(10**6):
        weight.sum().backward()
        optimizer.step()
"""


def test_a_script_that_moves_its_weights_by_hand_is_ended_after_few_passes(
    harness: Harness,
) -> None:
    outcome = harness.run(BY_HAND)
    assert (outcome.code, outcome.stderr) == (0, "")
    assert outcome.stdout.split()[-1] == "20"
    assert outcome.names() == ["process", "untrained"]
    assert outcome.document("untrained")["stopped"] is True


def test_a_script_without_torch_says_that_and_what_it_has_in_its_place(harness: Harness) -> None:
    outcome = harness.run("import numpy")
    assert outcome.names() == ["untrained"]
    told = outcome.document("untrained")
    assert (told["torch"], told["imported"]) == (False, ["numpy"])


def test_a_script_without_an_optimizer_is_ended_after_many_backward_passes(
    harness: Harness,
) -> None:
    assert harness.run(NEVER).stdout.split()[-1] == "1999"


def test_gradients_that_are_accumulated_for_long_are_no_such_script(harness: Harness) -> None:
    outcome = harness.run(ACCUMULATING)
    assert [line["backwards"] for line in outcome.lines("steps")] == [900] * 3


def test_processes_that_train_without_ranks_end_when_the_second_takes_its_step(
    harness: Harness,
) -> None:
    """Neither would end by itself, and the gate finds the records of both."""
    outcome = harness.run(RACING, REPRO_GATE_MAX_STEPS="1000000")
    assert outcome.stdout == "[0, 0]\n"
    assert outcome.names().count("summary") == outcome.names().count("state") == 2


@pytest.mark.parametrize(
    ("module", "replaced"),
    [
        ("recording.recorder", "Recorder.flush"),
        ("tensor_digests", "grid_body"),
        ("determinism.overrides", "Guard.poll"),
    ],
)
def test_a_replaced_function_of_any_subpackage_is_told(
    harness: Harness, module: str, replaced: str
) -> None:
    patch = f"""
import repro_gate_harness.{module}
plain = repro_gate_harness.{module}.{replaced}
repro_gate_harness.{module}.{replaced} = lambda *args: plain(*args)
"""
    summary = harness.run(ACCUMULATING.replace("import torch\n", f"import torch\n{patch}"))
    named = f"the script replaced the harness's {module.rpartition('.')[2]}.{replaced}"
    assert named in summary.document("summary")["problems"]
