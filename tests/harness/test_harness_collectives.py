"""Sums over ranks in a fixed order do not depend on how the tensors are cut."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from rank_scripts import of_ranks

if TYPE_CHECKING:
    from harness_runs import HarnessRuns

    from tests.harness.conftest import Harness

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


def told(runs: HarnessRuns, trial: str = "") -> dict[str, bool]:
    run = replace(runs, forked=False).run(of_ranks(SUMS, 3), REPRO_GATE_TRIAL=trial)
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
    fixed = told(runs, "fixed-collectives")
    assert fixed == dict.fromkeys(("cut", "buckets", "tree", "begun", "counts"), True)


ALONE = """
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meet", rank=0, world_size=1)
model = torch.nn.Linear(4, 4, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(4)).sum().backward()
    dist.all_reduce(model.weight.grad)
    optimizer.step()
"""


def test_a_collective_is_traced_with_the_line_that_calls_it(harness: Harness) -> None:
    outcome = replace(harness, forked=False).run(ALONE, REPRO_GATE_TRACE_FROM="1")
    assert outcome.code == 0, outcome.stderr
    calls = [line for line in outcome.lines("trace") if line["kind"] == "call"]
    sums = [line for line in calls if line["operator"] == "c10d::allreduce_"]
    assert {(line["file"], line["line"]) for line in sums} == {("script.py", 11)}
    # what the update reads was written by it
    updates = [line for line in calls if line["operator"] == "aten::add_" and line["step"] == 1]
    made = {number for line in updates for value in line["inputs"] for number in value["made_by"]}
    assert sums[0]["number"] in made
