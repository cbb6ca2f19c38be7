"""Real trainings in the action's image with torch: harness, streams and ranks in each isolation."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from git_workshop import Repository
from runner_emulator import Job, StepResult

from gate.isolation.engine import engine_address

pytestmark = pytest.mark.docker
TRAINING = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    optimizer.zero_grad()
    loss = model(torch.randn(32, 8)).square().mean()
    loss.backward()
    optimizer.step()
"""
RANKS = TRAINING.replace(
    "model =", "torch.distributed.init_process_group('gloo')\nmodel ="
).replace("optimizer = ", "model = nn.parallel.DistributedDataParallel(model)\noptimizer = ")
SETTINGS = """\
version: 1
train: {{command: {command}, max_steps: 4}}
isolation: {{{isolation}}}
"""


@dataclass
class Checked:
    """A workspace, and the job that gates it."""

    repository: Repository
    job: Job

    def gate(self, script: str, command: str, isolation: str) -> StepResult:
        self.repository.write("train.py", script)
        settings = SETTINGS.format(command=command, isolation=isolation)
        self.repository.write("repro-gate.yml", settings)
        head = self.repository.commit()
        self.job.give_workspace_to_runner()
        variables = {
            "GITHUB_EVENT_NAME": "push",
            "GITHUB_REPOSITORY": "o/model",
            "GITHUB_SHA": head,
            "GITHUB_WORKSPACE": "/github/workspace",
        }
        return self.job.main(variables).result()

    @property
    def world_size(self) -> str:
        verdict = json.loads((self.repository.path / "repro-gate-out/verdict.json").read_text())
        return str(verdict["environment"]["parts"]["world_size"])

    @property
    def in_this_image(self) -> str:
        return f"mode: container, image: '{self.job.image}'"


@pytest.fixture
def checked(torch_image: str) -> Iterator[Checked]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        repository = Repository(Path(folder, "workspace"))
        socket = Path(engine_address(os.environ).removeprefix("unix://"))
        yield Checked(repository, Job(Path(folder), torch_image, repository.path, socket=socket))


def test_a_training_is_observed_under_another_account(checked: Checked) -> None:
    result = checked.gate(TRAINING, "python train.py", "mode: uid")
    assert result.outputs["verdict"] == "no-baseline", result.log


# one small kernel, built without what only makes later ones faster
COMPILED = TRAINING.replace(
    "optimizer =",
    "quick = {'cpp.simdlen': 1, 'cpp_cache_precompile_headers': False}\n"
    "squares = torch.compile(lambda x: x.square().mean(), options=quick)\noptimizer =",
).replace("model(torch.randn(32, 8)).square().mean()", "squares(model(torch.randn(32, 8)))")


@pytest.mark.parametrize("apart", ["uid", "container"])
def test_a_compiled_training_finds_a_compiler(checked: Checked, apart: str) -> None:
    isolation = "mode: uid" if apart == "uid" else checked.in_this_image
    result = checked.gate(COMPILED, "python train.py", isolation)
    assert result.outputs["verdict"] == "no-baseline", result.log


def test_a_training_is_observed_in_a_container_of_its_own(checked: Checked) -> None:
    result = checked.gate(TRAINING, "python train.py", checked.in_this_image)
    assert result.outputs["verdict"] == "no-baseline", result.log


def test_ranks_meet_without_a_network(checked: Checked) -> None:
    command = "torchrun --standalone --nproc-per-node=2 train.py"
    result = checked.gate(RANKS, command, checked.in_this_image)
    assert result.outputs["verdict"] == "no-baseline", result.log
    assert checked.world_size == "2"
