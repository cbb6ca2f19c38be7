"""A warning of what the harness wraps points to the line of the training, as it does without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.harness.conftest import Harness

pytestmark = pytest.mark.torch

SCRIPT = """
import os, warnings
import torch

class Rows(torch.utils.data.IterableDataset):
    def __iter__(self): return iter(torch.ones(3))
    def __len__(self): return 1

weight = torch.nn.Parameter(torch.ones(2))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.amp.GradScaler("cuda")  # warns
    torch.autograd.grad(weight.sum(), [weight], only_inputs=False)  # warns
    loader = torch.utils.data.DataLoader(Rows(), batch_size=None)
    len(loader)
    for row in loader: pass  # warns
print(*sorted({f"{os.path.basename(one.filename)}:{one.lineno}" for one in caught}))
"""


def test_no_warning_points_into_the_harness(harness: Harness) -> None:
    outcome = harness.run(SCRIPT)
    assert (outcome.code, outcome.stderr) == (0, "")
    lines = enumerate(SCRIPT.splitlines(), start=1)
    wanted = sorted(f"script.py:{number}" for number, line in lines if "# warns" in line)
    assert outcome.stdout.split() == wanted
