"""The harness on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from harness_digest import parameters_digest, polynomial_of

if TYPE_CHECKING:
    from tests.harness.conftest import Harness

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TRAINING = """
import torch
from torch import nn
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(16, 3, 8, 8, device="cuda")).square().mean().backward()
    optimizer.step()
"""
# without it, torch refuses cuBLAS under deterministic algorithms
REPEATABLE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def test_two_strict_runs_on_a_gpu_record_the_same(harness: Harness) -> None:
    first, second = (harness.run(TRAINING, **REPEATABLE) for _ in range(2))
    digests = [[line["parameters"] for line in run.lines("steps")] for run in (first, second)]
    assert digests[0] == digests[1]
    assert all(digest.startswith("poly64:") for digest in digests[0])
    assert first.state() == second.state()


def test_a_run_on_a_gpu_names_the_device_and_its_memory(harness: Harness) -> None:
    summary = harness.run(TRAINING, **REPEATABLE).document("summary")
    assert summary["problems"] == []
    assert summary["device_memory_bytes"] > 0
    assert "multiprocessors" in summary["environment"]["device"]
    assert "none" not in {summary["environment"][part] for part in ("cuda", "cudnn", "driver")}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8])
def test_the_polynomial_is_the_same_on_every_device(dtype: torch.dtype) -> None:
    tensor = torch.arange(-64, 64, dtype=torch.int8).view(dtype)
    assert polynomial_of(tensor.cuda()) == polynomial_of(tensor)


def test_a_flipped_bit_on_a_gpu_changes_the_digest() -> None:
    tensor = torch.ones(3, 5, device="cuda")
    before = parameters_digest([tensor], print)
    tensor.view(torch.int32)[2, 4] ^= 1
    assert parameters_digest([tensor], print) != before
