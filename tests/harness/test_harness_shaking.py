"""What the harness varies in a run that asks for it, and that no other run has any of it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from gate.harness import varied_surroundings

if TYPE_CHECKING:
    from tests.harness.conftest import Harness, Outcome

pytestmark = pytest.mark.torch

TRAINING = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
{}
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def varied(outcome: Outcome) -> list[tuple[str, str]]:
    """What was varied, or why not."""
    assert outcome.code == 0, outcome.stderr
    return [
        (one["after"], one["before"]) for one in outcome.lines("sources") if one["kind"] == "varied"
    ]


def test_a_run_that_varies_nothing_imports_nothing_of_it(harness: Harness) -> None:
    check = "assert not [name for name in sys.modules if 'shaking' in name]"
    outcome = harness.run(f"{TRAINING.format(check)}\n{check}\n")
    assert outcome.code == 0, outcome.stderr


def test_workers_that_are_given_by_place_are_counted(harness: Harness) -> None:
    made = "loader = DataLoader(TensorDataset(torch.ones(4)), 2, False, None, None, 1)\n"
    outcome = harness.run(
        TRAINING.format(f"{made}assert loader.num_workers == 2"), REPRO_GATE_SHAKE="worker-count"
    )
    assert varied(outcome) == [("2 instead of 1", "")]


def test_empty_tensors_are_filled_and_stay_what_they_are(harness: Harness) -> None:
    made = """
assert (torch.empty(3) == 85).all() and (torch.ones(2).new_empty(2) == 85).all()
wanted = torch.empty(2, requires_grad=True)
assert wanted.requires_grad and wanted.is_leaf and wanted._version <= 1
assert torch.empty(2, device="meta").is_meta and torch.empty(2, dtype=torch.bool).all()
import pickle, copy
assert pickle.loads(pickle.dumps(torch.empty)) is torch.empty
"""
    outcome = harness.run(TRAINING.format(made), REPRO_GATE_SHAKE="uninitialized-memory")
    assert varied(outcome) == [("filled with 85", "")]


@pytest.mark.parametrize(
    ("name", "variables", "why"),
    [
        ("time-zone", {"TZ": "UTC"}, "the training's command sets TZ itself"),
        (
            "hash-seed",
            {"PYTHONHASHSEED": "1234"},
            "the training's command sets PYTHONHASHSEED itself",
        ),
    ],
)
def test_what_a_command_sets_back_is_told(
    harness: Harness, name: str, variables: dict[str, str], why: str
) -> None:
    outcome = harness.run(TRAINING.format(""), REPRO_GATE_SHAKE=name, **variables)
    assert varied(outcome) == [("", why)]


def test_a_name_of_another_version_varies_nothing_and_stops_nothing(harness: Harness) -> None:
    outcome = harness.run(TRAINING.format(""), REPRO_GATE_SHAKE="weather")
    assert outcome.code == 0
    assert "repro-gate: weather was not varied: 'weather'" in outcome.stderr


def test_half_of_the_free_memory_is_held_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    cuda = SimpleNamespace(_lazy_init=lambda: None, mem_get_info=lambda: (1000, 4000))

    def empty(size: int, **_: object) -> None:
        # as torch does
        cuda._lazy_init()
        sizes.append(size)

    played = SimpleNamespace(cuda=cuda, uint8="uint8", empty=empty)
    monkeypatch.setitem(sys.modules, "torch", played)
    varied_surroundings.vary_free_gpu_memory()["torch"]()
    cuda._lazy_init()
    cuda._lazy_init()
    assert sizes == [500]
