"""Which optimizers the harness takes for those of replicas, on two real ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from rank_scripts import of_ranks

if TYPE_CHECKING:
    from harness_runs import HarnessRuns

    from gate.evidence.run_evidence import RunEvidence

pytestmark = [pytest.mark.torch, pytest.mark.slow]

LOOP = """
for step in range(4):
    loss = model(torch.ones(4, 2) + rank + step).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    {after}
"""
PLAIN = """
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(2, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
"""
DRIFTS = "if rank == 1 and step == 1: nn.init.ones_(model.module.bias)"
OF_ITS_OWN = """
torch.manual_seed(0)
inner = DistributedDataParallel(nn.Linear(2, 1))
own = nn.Parameter(torch.full((1,), float(rank)))
model = lambda x: inner(x) * own
optimizer = torch.optim.SGD([*inner.parameters(), own], lr=0.1)
"""
LEFT_OUT = """
torch.manual_seed(0)
inner = nn.Linear(2, 1)
DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(inner, ["bias"])
model = DistributedDataParallel(inner)
with torch.no_grad(): inner.bias.add_(rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
NOT_WRAPPED = """
torch.manual_seed(rank)
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
SHARDED = """
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
torch.manual_seed(0)
model = fully_shard(nn.Linear(2, 2), mesh=init_device_mesh("cpu", (2,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
BUFFERS = """
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
OTHER_HOOK = """
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(2, 1))
def apart(state, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
model.register_comm_hook(None, apart)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


def run(runs: HarnessRuns, before: str, after: str = "") -> RunEvidence:
    return runs.run(of_ranks(before + LOOP.format(after=after)))


def test_a_replica_that_drifts_is_seen_after_the_next_step(runs: HarnessRuns) -> None:
    drift = run(runs, PLAIN, DRIFTS).replica_drift
    assert drift is not None
    assert (drift.step, drift.equal_until, drift.ranks) == (3, 2, (1,))
    assert drift.parameters == ("model/0/module.bias",)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(PLAIN, id="equal"),
        pytest.param(OF_ITS_OWN, id="a-parameter-outside"),
        pytest.param(LEFT_OUT, id="a-parameter-left-out"),
        pytest.param(NOT_WRAPPED, id="not-wrapped"),
        pytest.param(SHARDED, id="fully-sharded"),
        pytest.param(BUFFERS, id="buffers-of-its-own"),
        pytest.param(OTHER_HOOK, id="a-hook-that-does-not-sum"),
    ],
)
def test_a_correct_script_is_not_accused(runs: HarnessRuns, script: str) -> None:
    assert run(runs, script).replica_drift is None


def test_an_average_on_rank_0_alone_accuses_nobody(runs: HarnessRuns) -> None:
    averaged = PLAIN + "average = torch.optim.swa_utils.AveragedModel(model.module)\n"
    after = "rank or average.update_parameters(model.module)"
    assert run(runs, averaged, after).replica_drift is None


def test_ranks_are_recorded_by_rank(runs: HarnessRuns) -> None:
    evidence = run(runs, PLAIN)
    assert [one.rank for one in evidence.ranks] == [0, 1]
    zero, one = evidence.ranks
    assert zero.node == one.node != ""
    assert [series.name for series in one.metrics] == ["loss"]
    assert one.metrics[0].points != evidence.metrics[0].points
    first = zero.steps.observed[0].fingerprints, one.steps.observed[0].fingerprints
    assert first[0]["input"] != first[1]["input"]
    assert first[0]["gradients"] == first[1]["gradients"]
