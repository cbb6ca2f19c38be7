"""Sums over ranks in a fixed order do not depend on how the tensors are cut."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from rank_scripts import of_ranks

if TYPE_CHECKING:
    from harness_runs import HarnessRuns

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SUMS = """
from repro_gate_harness import metrics

own = torch.randn(4000, generator=torch.Generator().manual_seed(rank)) * 10.0**rank
whole = own.clone()
dist.all_reduce(whole)
pieces = [piece.clone() for piece in own.split(7)]
for piece in pieces:
    dist.all_reduce(piece)
mean = own.clone()
begun = dist.all_reduce(mean, async_op=True)
begun.wait()
counts = torch.full((3,), rank)
dist.all_reduce(counts)
parts = [torch.empty_like(own) for _ in range(3)]
dist.all_gather(parts, own)

def gradient(cap):
    torch.manual_seed(0)
    layers = [nn.Linear(40, 40) for _ in range(4)]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=cap)
    for _ in range(2):
        model.zero_grad()
        model(own[:400].view(10, 40)).square().mean().backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])

told = {
    "cut": torch.equal(whole, torch.cat(pieces)),
    "buckets": torch.equal(gradient(0.001), gradient(25)),
    "tree": torch.equal(whole, (parts[0] + parts[1]) + parts[2]),
    "begun": torch.equal(whole, mean),
    "counts": counts.tolist() == [3, 3, 3],
}
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    if step == 1:
        for name, equal in told.items():
            metrics.log(name, float(equal), step=step)
"""


def told(runs: HarnessRuns, **variables: str) -> dict[str, bool]:
    run = replace(runs, forked=False).run(of_ranks(SUMS, 3), **variables)
    return {
        series.name.removeprefix("logged."): series.points.values[0] == 1.0
        for series in run.metrics
        if series.name.startswith("logged.")
    }


def test_a_fixed_order_makes_sums_independent_of_cuts_and_buckets(runs: HarnessRuns) -> None:
    plain = told(runs)
    # what the setting is for: without it gloo's sums hang on how a tensor is cut
    assert plain["counts"]
    assert not (plain["cut"] and plain["buckets"])
    fixed = told(runs, REPRO_GATE_TRIAL="fixed-collectives")
    assert fixed == dict.fromkeys(("cut", "buckets", "tree", "begun", "counts"), True)
