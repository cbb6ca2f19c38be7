"""The zoo itself: each fault is one line, its truth is of one language, and the gate sees none."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from each_row import each_row
from planted import EVERYWHERE, MARK, Form, Planted, in_form, planted_faults, rank_faults
from zoo import Score, diagnosed, told

from gate.diagnosis.diagnosis import CauseClass
from gate.verdict.verdict import Outcome

FAULTS = {planted.name: planted for planted in planted_faults()}
OF_RANKS = {planted.name: planted for planted in rank_faults()}
EVERY = FAULTS | OF_RANKS
# one of each kind, for every run of the tests; `make test-zoo` diagnoses all
SAMPLE = ("drift_activation", "drift_clipping", "repeat_hand_batches", "repeat_urandom_seed")


def test_there_are_forty_and_half_of_them_are_drifts() -> None:
    drifts = [planted for planted in FAULTS.values() if planted.base is not None]
    assert len(FAULTS) >= 40
    assert abs(2 * len(drifts) - len(FAULTS)) <= 4


@each_row("planted", EVERY.values(), ids=EVERY)
def test_a_script_holds_the_fault_and_not_the_truth(planted: Planted) -> None:
    ast.parse(planted.script)
    assert MARK not in planted.script
    assert planted.summary not in planted.script
    assert {*planted.classes} <= {*CauseClass, "none"}
    assert planted.outcome in {*Outcome}
    line = planted.script.splitlines()[planted.line - 1]
    assert line.strip()
    if planted.base is not None:
        ast.parse(planted.base)
        pairs = zip(planted.script.splitlines(), planted.base.splitlines(), strict=True)
        assert [number for number, (a, b) in enumerate(pairs, 1) if a != b] == [planted.line]


def test_each_form_keeps_the_line_at_fault() -> None:
    for planted in EVERY.values():
        for form in (Form.CHECKPOINT, Form.METRICS, Form.DEVICE):
            formed = in_form(planted, form)
            if formed is None:
                continue
            ast.parse(formed.script)
            assert formed.script != planted.script
            before = planted.script
            if form is Form.DEVICE:
                before = before.replace('"cpu"', '"cuda"')
            pairs = zip(formed.script.splitlines(), before.splitlines(), strict=False)
            moved = [number for number, (a, b) in enumerate(pairs, 1) if a != b]
            assert len(moved) == 1, planted.name
            assert moved[0] < planted.line


def test_ten_faults_are_those_of_two_ranks() -> None:
    assert len(OF_RANKS) == 10
    assert {planted.ranks for planted in OF_RANKS.values()} == {2}
    # what cannot be judged, or is no difference, is named in words
    assert all(
        planted.says or planted.outcome == "nondeterministic" for planted in OF_RANKS.values()
    )


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("name", OF_RANKS)
def test_a_fault_of_ranks_is_named(name: str) -> None:
    found = told(OF_RANKS[name])
    assert (found.score, found.reason) == (Score.RIGHT, ""), found.sentence


CORRECT = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
{model}
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
average = torch.optim.swa_utils.AveragedModel(layers) if rank == 0 and {averages} else None
draws = torch.Generator().manual_seed(rank)
for step in range(6):
    loss = (model(torch.randn(8, 4, generator=draws)) - 2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if average is not None:
        average.update_parameters(layers)
dist.destroy_process_group()
"""
SHARDED = """from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
model = fully_shard(layers, mesh=init_device_mesh("cpu", (2,)))"""
CORRECT_SCRIPTS = {
    "replicated": CORRECT.format(model="model = DistributedDataParallel(layers)", averages=True),
    "sharded": CORRECT.format(model=SHARDED, averages=False),
}


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("name", CORRECT_SCRIPTS)
def test_a_correct_script_of_two_ranks_is_accused_of_nothing(name: str, tmp_path: Path) -> None:
    fault = OF_RANKS["replica_drift"]
    planted = replace(fault, script=CORRECT_SCRIPTS[name], says=())
    verdict = diagnosed(planted, tmp_path)
    assert (verdict.outcome, verdict.diagnosis) == (Outcome.NO_BASELINE, None)
    codes = {finding.code for finding in verdict.findings}
    assert codes.isdisjoint({"replicas-differ", "ranks-unlike"})


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("form", EVERYWHERE)
@pytest.mark.parametrize("name", SAMPLE)
def test_a_planted_fault_is_named(name: str, form: Form) -> None:
    planted = in_form(FAULTS[name], form)
    assert planted is not None
    found = told(planted)
    assert (found.score, found.reason) == (Score.RIGHT, ""), found.sentence
