"""Two ranks over gloo that share one model: FSDP of both kinds, and a loss that is spread."""

from __future__ import annotations

import sys

import pytest
from real_training import Trained, Trainings

from gate.comparison.compare import compare_steps

pytestmark = [pytest.mark.torch, pytest.mark.slow]

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
SHARDED = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

kind = sys.argv[1]
dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 1))
if kind == "second":
    mesh = init_device_mesh("cpu", (2,))
    for each in (model[0], model):
        fully_shard(each, mesh=mesh)
else:
    model = FullyShardedDataParallel(
        model, use_orig_params=kind == "first, by name", device_id=torch.device("cpu")
    )

def gather(*_, **__):
    raise RuntimeError("the other rank never gets here")

if kind != "second":
    model.state_dict = gather
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
draws = torch.Generator().manual_seed(dist.get_rank())
for step in range(10):
    optimizer.zero_grad()
    model(torch.randn(4, 8, generator=draws)).square().mean().backward()
    optimizer.step()
"""
# The loss is a sum that no rank has the whole of; rank 1 would wait for ever if rank 0 asked alone.
PARTIAL = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
weight = torch.nn.Parameter(distribute_tensor(torch.arange(8.0), mesh, [Shard(0)]))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(10):
    loss = (weight * weight).sum()
    assert loss.placements == (Partial(),)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
OWN_PARTS = {
    "first": {"state/model/0/_fsdp_wrapped_module._flat_param"},
    "first, by name": {"state/model/0/_fsdp_wrapped_module.0.weight"},
    "second": {"state/model/0/0.weight", "state/optimizer/0/state/0/exp_avg"},
}


def run(trainings: Trainings, kind: str) -> Trained:
    return trainings.run(SHARDED, command=(*TORCHRUN, "train.py", kind))


@pytest.mark.parametrize("kind", OWN_PARTS)
def test_each_rank_keeps_its_own_part_and_two_runs_are_equal(
    trainings: Trainings, kind: str
) -> None:
    first, second = run(trainings, kind), run(trainings, kind)
    assert (first.evidence.notes, first.evidence.left_out) == ((), ())
    assert len(first.evidence.steps) == 3
    assert compare_steps(first.evidence.steps, second.evidence.steps) == ((), 3)
    assert first.evidence.checkpoint == second.evidence.checkpoint
    tensors = first.tensors()
    for name in OWN_PARTS[kind]:
        other = name.replace("state/", "state.rank1/", 1)
        assert tensors[name] != tensors[other]
    means = [name for name in tensors if name.endswith("running_mean")]
    assert len(means) == 2


def test_a_loss_that_is_spread_over_ranks_is_each_ranks_own_part(trainings: Trainings) -> None:
    trained = trainings.run(PARTIAL, command=(*TORCHRUN, "train.py"))
    assert (trained.evidence.notes, trained.evidence.left_out) == ((), ())
    first = float(sum(number**2 for number in range(4)))
    assert trained.series("loss")[0] == first
