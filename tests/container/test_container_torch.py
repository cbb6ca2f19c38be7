"""Real trainings in the action's image with torch: harness, streams and ranks in each isolation."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
RESUMED = """
import os
import torch
from torch import nn
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
step = 0
if os.path.exists("out/last.pt"):
    saved = torch.load("out/last.pt", weights_only=False)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
    torch.set_rng_state(saved["random"])  # restored
os.makedirs("out", exist_ok=True)
while step < 4:
    optimizer.zero_grad()
    loss = model(torch.randn(32, 8)).square().mean()
    loss.backward()
    optimizer.step()
    step += 1
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save({**state, "random": torch.get_rng_state()}, "out/part")
    os.replace("out/part", "out/last.pt")
"""
RESUME = "resume: {checkpoint: out/last.pt, at_step: 2}\n"


@dataclass
class Checked:
    """A workspace, and the job that gates it."""

    repository: Repository
    job: Job

    def gate(self, script: str, command: str, isolation: str, more: str = "") -> StepResult:
        self.repository.write("train.py", script)
        settings = SETTINGS.format(command=command, isolation=isolation) + more
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
    def verdict(self) -> dict[str, Any]:
        return json.loads((self.repository.path / "repro-gate-out/verdict.json").read_text())  # type: ignore[no-any-return]

    @property
    def world_size(self) -> str:
        return str(self.verdict["environment"]["parts"]["world_size"])

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


@pytest.mark.parametrize("missing", ["nothing", "restored"])
def test_a_training_is_resumed_in_a_container_of_its_own(checked: Checked, missing: str) -> None:
    lines = RESUMED.splitlines(keepends=True)
    script = "".join(line for line in lines if not line.endswith(f"# {missing}\n"))
    result = checked.gate(script, "python train.py", checked.in_this_image, RESUME)
    causes = [cause["sentence"] for cause in checked.verdict["resume"]["causes"]]
    expected = {
        "nothing": ("no-baseline", []),
        "restored": (
            "resume-differs",
            [
                "torch's generator was not restored",
                "batch 3 is batch 1's, which may follow from it",
            ],
        ),
    }
    assert (result.outputs["verdict"], causes) == expected[missing], result.log
