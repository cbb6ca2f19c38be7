"""Single switches, the cold start and the gradients, under the real harness."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.harness.conftest import Harness, Outcome

pytestmark = pytest.mark.torch
TRAINING = """
import torch
weight = torch.nn.Parameter(torch.ones(4))
unused = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight, unused], lr=0.5)
for factor in (3.0, 5.0):
    optimizer.zero_grad()
    (weight * factor).sum().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def outcome(harness: Harness) -> Outcome:
    knobs = "cudnn_deterministic=on;memory_fill=on;deterministic_algorithms=keep"
    # torch is cold in a Python of its own alone
    return replace(harness, forked=False).run(
        TRAINING, REPRO_GATE_KNOBS=knobs, REPRO_GATE_NOISE="1"
    )


def test_only_the_named_switches_are_on(outcome: Outcome) -> None:
    attestation = outcome.document("process")
    applied = attestation["applied"]
    assert attestation["problems"] == []
    assert applied["cudnn_deterministic"] == "on"
    assert applied["memory_fill"] == "on"
    assert applied["deterministic_algorithms"] == "off"


def test_the_gradients_are_those_of_the_first_step(outcome: Outcome) -> None:
    three = b"\0\0\x40\x40"
    content = outcome.path("gradients").read_bytes()
    assert content.endswith(three * 4)
    assert content.count(b'"gradient/') == 1


def test_the_cold_start_ends_with_the_first_step(outcome: Outcome) -> None:
    summary = outcome.document("summary")
    assert 0.1 < summary["first_step_seconds"] < 60
    assert summary["problems"] == []
