"""Two ranks over gloo, as torchrun and torch.multiprocessing start them."""

from __future__ import annotations

import sys

import pytest
from evidence_cases import evidence_set_of, settings_of
from real_training import Trained, Trainings

from gate.comparison.compare import compare_results, compare_steps
from gate.errors import EvidenceError, RunError
from gate.verdict.determinism_budget import determinism_budget

pytestmark = [pytest.mark.torch, pytest.mark.slow]

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")

# Rank 0 saves in a `finally` block, behind a barrier that both ranks must reach.
DATA_PARALLEL = """
import atexit, os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draws = torch.Generator().manual_seed(rank)
    atexit.register(print, f"exit handler of rank {rank} ran")
    try:
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.randn(8, 4, generator=draws)).square().mean().backward()
            optimizer.step()
    finally:
        dist.barrier()
        if rank == 0:
            torch.save(model.module.state_dict(), "model.pt")
        dist.destroy_process_group()

if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(dist.get_rank())
"""

# The ranks reach their process group by a file and never stand in a variable.
SPAWNED = """
import os
import torch
import torch.distributed as dist
import train

def worker(rank):
    meeting = f"file://{os.getcwd()}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    train.train(rank)

if __name__ == "__main__":
    torch.multiprocessing.spawn(worker, nprocs=2)
"""

# The ranks train apart, so that one may do something else than the other.
APART = """
import os, signal
import torch
rank = int(os.environ["RANK"])
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(1, 10):
    {fault}
    weight.sum().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def launched(trainings: Trainings) -> Trained:
    return trainings.run(DATA_PARALLEL, command=(*TORCHRUN, "train.py"), checkpoint="model.pt")


@pytest.mark.smoke
def test_all_ranks_stop_at_the_same_step(launched: Trained) -> None:
    assert len(launched.evidence.steps) == 3
    assert launched.evidence.environment.parts["world_size"] == "2"
    assert {process.rank for process in launched.evidence.processes} == {0, 1}
    assert launched.evidence.children == ()


def test_the_determinism_budget_is_from_what_the_ranks_attest(launched: Trained) -> None:
    run = launched.evidence
    told = [rank.facts["process_group"].split(",") for rank in run.rank_facts]
    assert all("cpu:gloo" in backends for backends in told)
    same = compare_results(run, run, settings_of().compare, ("strict-1", "strict-1"))
    budget = determinism_budget(evidence_set_of(run), strict=same, default=None, baseline=None)
    assert {source.kind.value: source.state.value for source in budget} == {
        "reduction-order": "eliminated",
        "neighbours": "recorded",
        "elastic-workers": "eliminated",
        "unlike-hardware": "eliminated",
        "placement": "bounded",
    }


def test_the_ends_of_all_ranks_run(launched: Trained) -> None:
    for rank in (0, 1):
        assert f"exit handler of rank {rank} ran" in launched.text
    tensors = launched.tensors()
    saved = tensors["checkpoint/weight"]
    assert saved == tensors["state/model/0/module.weight"]
    assert saved == tensors["state.rank1/model/0/module.weight"]


def test_workers_of_torch_multiprocessing_are_ranks_too(
    trainings: Trainings, launched: Trained
) -> None:
    others = {"spawned.py": SPAWNED}
    spawned = trainings.run(
        DATA_PARALLEL, command=(sys.executable, "spawned.py"), others=others, checkpoint="model.pt"
    )
    assert compare_steps(spawned.evidence.steps, launched.evidence.steps)[0] == ()
    assert spawned.evidence.checkpoint == launched.evidence.checkpoint


def test_a_rank_that_fails_ends_the_run(trainings: Trainings) -> None:
    fault = "if rank == 1 and step == 2: raise RuntimeError('rank 1 gave up')"
    with pytest.raises(RunError, match="exited with 1") as caught:
        trainings.run(APART.format(fault=fault), command=(*TORCHRUN, "train.py"))
    assert "repro_gate_harness" not in "\n".join(caught.value.details)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        pytest.param(
            "if rank == 1 and step == 2: os._exit(0)",
            r"state-r1-\d+\.safetensors is missing: the training process did not exit cleanly",
            id="silent death",
        ),
        pytest.param(
            "if rank == 1 and step == 3: break",
            r"rank 1 took 2 steps, rank 0 took 3",
            id="fewer steps",
        ),
        pytest.param("if rank == 1: break", "rank 1 took no optimizer step", id="no step"),
    ],
)
def test_ranks_that_do_not_train_alike_are_refused(
    trainings: Trainings, fault: str, message: str
) -> None:
    with pytest.raises(EvidenceError, match=message):
        trainings.run(APART.format(fault=fault), command=(*TORCHRUN, "train.py"))
