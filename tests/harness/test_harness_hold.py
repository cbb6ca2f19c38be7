"""A run that is started ahead waits where torch has been imported, and draws nothing meanwhile."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.harness.conftest import Harness, Outcome

pytestmark = pytest.mark.torch
TRAINING = """
import torch
from repro_gate_harness.lifecycle.session import Waiting, started_at
print(started_at, Waiting.waited_seconds)
weight = torch.nn.Parameter(torch.rand(4))
optimizer = torch.optim.SGD([weight], lr=0.5)
for _ in range(3):
    optimizer.zero_grad()
    (weight * torch.rand(4)).sum().backward()
    optimizer.step()
"""
DRAWS = """
import random
import numpy as np
import torch
for module in (random, np.random, torch.random):
    module.seed() if module is torch.random else module.seed(1)
torch.manual_seed(1)
def states():
    return (random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().tolist())
before = states()
import torch._dynamo
print(states() == before)
"""
HELD = 4.0


@pytest.fixture(scope="module")
def held(harness: Harness, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    sign = tmp_path_factory.mktemp("sign") / "go"
    timer = threading.Timer(HELD, sign.touch)
    timer.start()
    try:
        return harness.run(TRAINING, REPRO_GATE_LET_GO=str(sign))
    finally:
        timer.join()


def test_it_goes_on_when_the_sign_is_there(held: Outcome, harness: Harness) -> None:
    assert held.code == 0
    plain = harness.run(TRAINING)
    assert plain.document("summary")["steps"] == held.document("summary")["steps"]
    assert held.state() == plain.state()


def test_what_it_waited_is_not_in_its_start(held: Outcome) -> None:
    summary = held.document("summary")
    started, waited = map(float, held.stdout.split())
    # both by the kernel's monotonic clock
    until_the_step = summary["first_step_clock_seconds"] - started
    assert 0 < summary["ready_seconds"] <= summary["first_step_seconds"] <= until_the_step - waited
    assert 0 < summary["first_step_clock_seconds"] <= time.monotonic()


def test_a_sign_that_is_there_already_is_not_waited_for(harness: Harness, tmp_path: Path) -> None:
    sign = tmp_path / "go"
    sign.touch()
    outcome = harness.run(TRAINING, REPRO_GATE_LET_GO=str(sign))
    assert outcome.code == 0
    assert outcome.document("summary")["steps"] == 3


def test_what_is_imported_meanwhile_draws_nothing() -> None:
    """Else a run that waited would train with other numbers than one that did not."""
    done = subprocess.run(
        (sys.executable, "-c", DRAWS), capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stdout.strip() == "True"
