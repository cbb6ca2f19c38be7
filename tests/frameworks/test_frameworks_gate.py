"""Whole gate calls of trainings as their libraries show them, with a change or a fault."""

from __future__ import annotations

from pathlib import Path

import pytest
from gate_bench import Bench
from git_workshop import Repository

from gate.report.assembly import ReportLinks
from gate.report.comment import comment_text
from gate.verdict.verdict import Outcome, Verdict

pytestmark = [pytest.mark.torch, pytest.mark.slow]

LIGHTNING = """
import lightning, torch

SCALE = 1.0

class Boring(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 2)
    def training_step(self, batch, index):
        return self.layer(batch).sum() * SCALE
    def configure_optimizers(self):
        return torch.optim.SGD(self.layer.parameters(), lr=0.1)

class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.data = torch.randn(64, 32)
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return self.data[index]

trainer = lightning.Trainer(
    max_epochs=1, limit_train_batches=1, accelerator="cpu", logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Boring(), torch.utils.data.DataLoader(Rows(), batch_size=2))
"""

# Both networks learn in turns, and each loss leads through the other.
GAN = """
import torch
from torch import nn

SCALE = 1.0
generator = nn.Linear(4, 8)
critic = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
learn_critic = torch.optim.Adam(critic.parameters(), lr=0.001)
learn_generator = torch.optim.Adam(generator.parameters(), lr=0.001)
judge = nn.BCEWithLogitsLoss()
for _ in range(6):
    critic.zero_grad()
    judge(critic(torch.randn(32, 8)), torch.ones(32, 1)).backward()
    fake = generator(torch.randn(32, 4)) * SCALE
    judge(critic(fake.detach()), torch.zeros(32, 1)).backward()
    learn_critic.step()
    generator.zero_grad()
    judge(critic(fake), torch.ones(32, 1)).backward()
    learn_generator.step()
"""

REINFORCE = """
import gymnasium, torch

SCALE = 1.0
env = gymnasium.make("CartPole-v1")
policy = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
for episode in range(4):
    state, _ = env.reset(RESET)
    chances, rewards = [], []
    for _ in range(20):
        choice = torch.distributions.Categorical(logits=policy(torch.as_tensor(state)))
        action = choice.sample()
        chances.append(choice.log_prob(action))
        state, reward, ended, cut, _ = env.step(action.item())
        rewards.append(reward)
        if ended or cut:
            break
    loss = -sum(chances) * sum(rewards) / 20 * SCALE
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

# Shuffled by a generator that the library seeds with the process and the time.
WEBDATASET = """
import io, tarfile
import numpy as np, torch, webdataset

for shard in range(2):
    with tarfile.open(f"shard-{shard}.tar", "w") as archive:
        for row in range(32):
            content = io.BytesIO()
            np.save(content, np.full(4, shard * 32 + row, dtype=np.float32) / 64)
            member = tarfile.TarInfo(f"{shard:02}{row:04}.npy")
            member.size = len(content.getvalue())
            content.seek(0)
            archive.addfile(member, content)

def decoded(sample):
    return (torch.from_numpy(np.load(io.BytesIO(sample["npy"]))),)

def main():
    rows = webdataset.WebDataset("shard-{0..1}.tar", shardshuffle=False).shuffle(20).map(decoded)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in torch.utils.data.DataLoader(rows.batched(8), batch_size=None, num_workers=2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

if __name__ == "__main__":
    main()
"""

GAUSSIAN_PROCESS = """
import math
import gpytorch, torch

SCALE = 1.0
x = torch.linspace(0, 1, 20)
y = torch.sin(x * 2 * math.pi) * SCALE

class Model(gpytorch.models.ExactGP):
    def __init__(self, likelihood):
        super().__init__(x, y, likelihood)
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

likelihood = gpytorch.likelihoods.GaussianLikelihood()
model = Model(likelihood)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
loss_of = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
model.train(), likelihood.train()
for _ in range(6):
    optimizer.zero_grad()
    loss = -loss_of(model(x), y)
    loss.backward()
    optimizer.step()
"""

CHANGED = {
    "lightning": LIGHTNING,
    "torch": GAN,
    "gymnasium": REINFORCE.replace("RESET", "seed=episode"),
    "gpytorch": GAUSSIAN_PROCESS,
}


def project(place: Path, script: str, steps: int) -> Bench:
    repository = Repository(place / "project")
    repository.write(
        "repro-gate.yml",
        f"version: 1\ntrain: {{command: python train.py, max_steps: {steps}}}\n"
        "diagnosis: {budget_seconds: 600}\ncost: {when: never}\n",
    )
    repository.write("train.py", script)
    repository.commit()
    return Bench(repository, place / "out")


def first_block(verdict: Verdict) -> str:
    return comment_text(verdict, ReportLinks()).partition("<details>")[0]


@pytest.mark.parametrize("library", CHANGED)
def test_a_changed_number_is_found_with_its_line(library: str, tmp_path: Path) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed: make test-frameworks")
    script = CHANGED[library]
    bench = project(tmp_path, script, 10)
    base = bench.record()
    bench.project.write("train.py", script.replace("SCALE = 1.0", "SCALE = 1.5"))
    bench.project.commit()
    verdict = bench.gate(base=base).verdict
    assert verdict.outcome is Outcome.CODE_DRIFT, verdict.cause
    number = script.splitlines().index("SCALE = 1.0") + 1
    assert f"train.py:{number}" in first_block(verdict)


@pytest.mark.parametrize("library", CHANGED)
def test_the_same_commit_reproduces(library: str, tmp_path: Path) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed: make test-frameworks")
    bench = project(tmp_path, CHANGED[library], 1)
    bench.record()
    verdict = bench.gate().verdict
    assert (verdict.outcome, verdict.exit_code) == (Outcome.REPRODUCED, 0), verdict.cause


def test_an_environment_without_a_seed_is_named(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium", reason="gymnasium is not installed: make test-frameworks")
    verdict = project(tmp_path, REINFORCE.replace("RESET", ""), 3).gate().verdict
    assert verdict.outcome is Outcome.NONDETERMINISTIC
    block = first_block(verdict)
    assert "Pass seed= to reset()" in block
    line = REINFORCE.splitlines().index("    state, _ = env.reset(RESET)") + 1
    assert f"train.py:{line}" in block


def test_rows_shuffled_by_workers_are_no_fault_of_an_operator(tmp_path: Path) -> None:
    pytest.importorskip("webdataset", reason="webdataset is not installed: make test-frameworks")
    verdict = project(tmp_path, WEBDATASET, 4).gate().verdict
    assert verdict.outcome is Outcome.NONDETERMINISTIC
    assert verdict.diagnosis is not None
    assert verdict.diagnosis.first_step == 1
    comment = comment_text(verdict, ReportLinks())
    assert "operator is nondeterministic" not in comment
    assert "aten::set_" not in first_block(verdict)
