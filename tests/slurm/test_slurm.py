"""The gate on the nodes of a real Slurm: a pass, a fault on one node, and what may go wrong."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest
from played_training import WITH_RANKS, Project
from real_cluster import RealCluster, ended

pytestmark = pytest.mark.slurm
TORCHRUN = "torchrun --nproc-per-node 1 train.py"
DDP = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
samples = torch.randn(64, 8)[rank::world_size]
for step in range(5):
    noise = torch.zeros(1)
    loss = (model(samples) + noise).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
"""
DRAWS = "noise = torch.tensor([random.SystemRandom().random()]) if rank == 1 else torch.zeros(1)"
SLEEPS = "import time\ntime.sleep(300)\n"


def training(cluster: RealCluster, project: Project) -> subprocess.Popen[bytes]:
    """A call whose first run is a step by now, and takes minutes."""
    cluster.settings(project, script=SLEEPS + WITH_RANKS)
    call = cluster.start(project, "gate")
    cluster.until(lambda: cluster.slurm("squeue", "-h", "--steps", "-o", "%i").count("."))
    return call


@pytest.mark.torch
def test_a_pair_over_two_nodes_passes_is_sealed_and_verifies(
    cluster: RealCluster, project: Project, tmp_path: Path
) -> None:
    cluster.settings(project, TORCHRUN, DDP)
    keys = tmp_path / "keys"
    assert cluster.call(project, "keys", "generate", "--allow-plain", out="keys")[0] == 0
    assert cluster.call(project, "baseline", "record", "--reason", "first")[0] == 0
    project.write(".repro-gate/trusted-keys.json", (keys / "trusted-keys.json").read_bytes())
    commit = project.commit()
    key = ("--signing-key", str(keys / "signing-key.pem"), "--allow-plain-key")
    code, told = cluster.call(project, "gate", *key)
    assert (code, "same result, bit for bit" in told) == (0, True), told
    package = str(tmp_path / "out" / "package.tar")
    trust = ("--trusted-keys", str(keys / "trusted-keys.json"), "--commit", commit)
    code, told = ended(cluster.start_plain(project, "verify", package, *trust))
    assert code == 0, told
    assert "isolation job user" in told


@pytest.mark.torch
def test_a_draw_on_the_second_node_is_named_with_its_line(
    cluster: RealCluster, project: Project, tmp_path: Path
) -> None:
    script = "import random\n" + DDP.replace("noise = torch.zeros(1)", DRAWS)
    cluster.settings(project, TORCHRUN, script)
    code, told = cluster.call(project, "gate")
    assert code == 1, told
    verdict = json.loads((tmp_path / "out" / "verdict.json").read_text())
    assert verdict["outcome"] == "nondeterministic"
    line = script[: script.index(DRAWS)].count("\n") + 1
    assert f"train.py:{line}" in told or f"train.py, line {line}" in told, told


def test_a_job_that_no_node_takes_is_an_error_and_leaves_the_queue(
    cluster: RealCluster, project: Project
) -> None:
    cluster.slurm("scontrol", "update", "nodename=n[1-4]", "state=drain", "reason=test")
    cluster.settings(project, queue_seconds=3)
    code, told = cluster.call(project, "gate")
    assert (code, "waited 3 s for 2 nodes: job" in told) == (3, True), told
    cluster.until(lambda: not cluster.jobs())


def test_a_node_that_is_lost_is_an_error_and_no_difference(
    cluster: RealCluster, project: Project
) -> None:
    call = training(cluster, project)
    (job,) = cluster.jobs("RUNNING")
    node = cluster.slurm("squeue", "-h", f"--jobs={job}", "-o", "%B")
    cluster.slurm("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    code, told = ended(call)
    assert (code, f"the cluster ended job {job}: a node failed" in told) == (3, True), told


def test_a_rank_that_is_killed_ends_the_others_and_is_named(
    cluster: RealCluster, project: Project
) -> None:
    kills = "import os\nif os.environ['RANK'] == '1': os.kill(os.getpid(), 9)\n"
    cluster.settings(project, script=kills + SLEEPS + WITH_RANKS)
    code, told = cluster.call(project, "gate")
    assert code == 3, told
    assert "was killed by SIGKILL (task 1 on node n2, before a step)" in told, told


def test_a_job_that_somebody_cancels_is_an_error(cluster: RealCluster, project: Project) -> None:
    call = training(cluster, project)
    cluster.slurm("scancel", *cluster.jobs())
    code, told = ended(call)
    assert (code, "somebody cancelled it" in told) == (3, True), told


def test_ctrl_c_cancels_the_job_and_clears_the_shared_folder(
    cluster: RealCluster, project: Project
) -> None:
    call = training(cluster, project)
    call.send_signal(signal.SIGINT)
    code, told = ended(call)
    assert (code, "cancelled by SIGINT" in told) == (4, True), told
    cluster.until(lambda: not cluster.jobs())
    assert list(cluster.shared.iterdir()) == []


def test_ctrl_c_while_the_job_waits_cancels_it(cluster: RealCluster, project: Project) -> None:
    cluster.slurm("scontrol", "update", "nodename=n[1-4]", "state=drain", "reason=test")
    call = cluster.start(project, "gate")
    cluster.until(lambda: cluster.jobs("PENDING"))
    call.send_signal(signal.SIGINT)
    assert ended(call)[0] == 4
    cluster.until(lambda: not cluster.jobs())


def test_the_next_call_cancels_the_job_of_one_that_was_killed(
    cluster: RealCluster, project: Project
) -> None:
    call = training(cluster, project)
    (orphan,) = cluster.jobs()
    call.kill()
    ended(call)
    assert cluster.jobs() == [orphan]
    cluster.settings(project)
    code, told = cluster.call(project, "gate", out="next")
    assert code == 1, told
    assert f"cancelling job {orphan}, whose gate call ended" in told
    assert not cluster.jobs()


def test_two_gates_at_once_do_not_meet(cluster: RealCluster, project: Project) -> None:
    both = [cluster.start(project, "gate", out=name) for name in ("one", "two")]
    assert [ended(call)[0] for call in both] == [1, 1]
    assert list(cluster.shared.iterdir()) == []


def test_a_repeat_on_other_nodes_says_so(
    cluster: RealCluster, project: Project, tmp_path: Path
) -> None:
    cluster.settings(project, allocations=2)
    code, told = cluster.call(project, "gate")
    assert code == 1, told
    verdict = json.loads((tmp_path / "out" / "verdict.json").read_text())
    assert verdict["outcome"] == "no-baseline"
    assert verdict["isolation"]["other_nodes"] is True
    nodes = re.findall(r"job [0-9]+ on (\S+ \S+)", told)
    assert len(set(nodes)) == len(nodes) == 2
