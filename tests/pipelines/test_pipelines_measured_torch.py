"""Cost and noise of real trainings: torch, the real harness, the CPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from gate_bench import Bench
from git_workshop import Repository

from gate.comparison.cost_arms import minimal_set
from gate.comparison.differences import CostState
from gate.comparison.measurements import Closeness
from gate.pipelines.compare_commits import compare_commits
from gate.pipelines.measurement import AskedRanks, Priced, measure_cost, measure_noise
from gate.pipelines.prepared import prepare
from gate.pipelines.trainings import Trainings
from gate.settings.knobs import PricedKnob, strict_knobs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch"),
]
TINY = """
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
"""
# Adding a million numbers into few places with two threads: their order is up to the threads.
RACING = """
import torch
weight = torch.nn.Parameter(torch.ones(8))
optimizer = torch.optim.SGD([weight], lr=1e-3)
places = torch.randint(0, 8, (2_000_000,))
addends = torch.rand(2_000_000)
while True:
    optimizer.zero_grad()
    total = torch.zeros(8).index_put_((places,), addends, accumulate=True)
    (weight * total).sum().backward()
    optimizer.step()
"""


def _bench(folder: Path, script: str, settings: str) -> Bench:
    project = Repository(folder / "project")
    project.write("train.py", script)
    project.write("repro-gate.yml", f"version: 1\nisolation: {{mode: none}}\n{settings}")
    project.commit()
    return Bench(project, folder / "out")


def test_the_price_of_a_tiny_training(tmp_path: Path) -> None:
    settings = "train: {command: python train.py, max_steps: 20}\ncost: {rounds: 2, min_steps: 5}\n"
    bench = _bench(tmp_path, TINY, settings)
    cost = measure_cost(bench.request(), bench.adapters(), attribute=False)
    assert [price.state for price in cost.prices] == [CostState.INCONCLUSIVE] * 3
    assert all(price.ratio is not None and price.ratio > 0 for price in cost.prices)
    assert all(arm.distinct_results == 1 for arm in cost.arms)
    starts = [arm.cold_start_seconds for arm in cost.arms]
    assert all(start is not None and 0.1 < start < 100 for start in starts)
    assert cost.steps_used == 15


def test_the_noise_of_a_training_whose_threads_race(tmp_path: Path) -> None:
    settings = (
        "train: {command: python train.py, max_steps: 4}\ndeterminism: {threads: 2}\n"
        "noise: {runs: 4}\n"
    )
    bench = _bench(tmp_path, RACING, settings)
    noise = measure_noise(bench.request(), bench.adapters(), runs=None)
    assert noise.distinct_results > 1
    assert noise.first_diverging_step in {1, 2, 3, 4}
    assert noise.weights.largest_relative_l2 is not None
    assert 0 < noise.weights.largest_relative_l2 < 1e-3
    assert noise.weights.elements == 8
    assert noise.reduction is not None
    assert noise.reduction.elements == 8
    assert "absolute: " in noise.snippet


def test_a_knob_without_which_threads_race_is_found_to_be_needed(tmp_path: Path) -> None:
    """By real runs, in an order of its own: here determinism is the faster way, so costs nothing.

    The compiler's knob is not needed, since nothing is compiled.
    """
    settings = "train: {command: python train.py, max_steps: 6}\ndeterminism: {threads: 2}\n"
    bench = _bench(tmp_path, RACING, settings)
    order = (PricedKnob.DETERMINISTIC_ALGORITHMS, PricedKnob.INDUCTOR_DETERMINISTIC)
    whole = strict_knobs(fill=False)
    with prepare(bench.request(), bench.adapters()) as prepared:
        priced = Priced(Trainings(prepared))
        assert priced.equal(whole)
        search = minimal_set(whole, order, priced.equal, priced.verify)
    assert search.needed == (PricedKnob.DETERMINISTIC_ALGORITHMS,)
    assert search.dropped == (PricedKnob.INDUCTOR_DETERMINISTIC,)
    assert search.verified


LOADED = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader(torch.randn(640, 64), batch_size=32):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""


def test_two_commits_of_which_one_learns_faster(tmp_path: Path) -> None:
    settings = "train: {command: python train.py, max_steps: 12}\ncost: {min_steps: 5}\n"
    bench = _bench(tmp_path, LOADED, settings)
    bench.project.write("train.py", LOADED.replace("lr=0.01", "lr=0.02"))
    bench.project.commit()
    found = compare_commits(
        bench.request(base="HEAD~1"), bench.adapters(), base_name="HEAD~1", rounds=2
    ).document
    assert (found.closeness, found.repeatable) == (Closeness.APART, True)
    (loss,) = found.metrics
    # the first loss is of the weights before any update
    assert (loss.first_step, loss.compared_points, loss.differing_points) == (2, 12, 11)
    assert [(one.name, one.before, one.after) for one in found.optimizer_settings] == [
        ("lr", "0.01", "0.02")
    ]
    for kind in found.performance:
        assert kind.steps_per_second is not None
        assert kind.samples_per_second == pytest.approx(32 * kind.steps_per_second)


SHARDED = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    optimizer.zero_grad()
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
"""


def test_noise_of_three_ranks_all_reduces_the_gradients_of_the_workload(tmp_path: Path) -> None:
    command = "torchrun --standalone --nproc-per-node 2 train.py"
    bench = _bench(tmp_path, SHARDED, f"train: {{command: {command}, max_steps: 2}}\n")
    asked = AskedRanks(ranks=3, repetitions=4)
    noise = measure_noise(bench.request(), bench.adapters(), runs=2, asked=asked)
    # the reruns have three ranks too
    assert noise.provenance.environment.part("world_size") == "3"
    found = noise.all_reduce
    assert found is not None
    assert (found.ranks, found.tensors, found.elements, found.skipped) == (3, 2, 68, 0)
    assert (found.same_results, found.repetitions) == (1, 4)
    assert noise.notes == ()


def test_a_seed_without_effect_and_a_command_without_ranks_are_noted(tmp_path: Path) -> None:
    fixed = TINY.replace("import torch\n", "import torch\ntorch.manual_seed(3)\n")
    bench = _bench(tmp_path, fixed, "train: {command: python train.py, max_steps: 2}\n")
    asked = AskedRanks(ranks=2, repetitions=2)
    noise = measure_noise(bench.request(), bench.adapters(), runs=2, asked=asked)
    assert "the seed has no effect" in noise.notes[0]
    assert "nothing in it says how many ranks" in noise.notes[1]
    assert noise.all_reduce is not None
    assert noise.all_reduce.spread == 0.0
