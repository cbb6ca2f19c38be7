"""Lightning, transformers, accelerate and TensorBoard; `make test-frameworks` installs them."""

from __future__ import annotations

import sys

import pytest
from real_training import Trained, Trainings

from gate.comparison.compare import compare_steps
from gate.verdict.override_findings import override_findings

pytestmark = [pytest.mark.torch, pytest.mark.slow]

# Logs to TensorBoard, saves checkpoints, and averages weights: all of it Lightning's own doing.
LIGHTNING = """
import lightning, torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, _):
        loss = self.layer(batch[0]).square().mean()
        self.log("train_loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)

lightning.seed_everything(7, workers=True)
data = torch.utils.data.TensorDataset(torch.randn(64, 4))
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", accumulate_grad_batches=2, log_every_n_steps=1,
    logger=TensorBoardLogger("logs"), callbacks=[ModelCheckpoint(save_on_exception=True)],
    enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=8, shuffle=True))
"""

TRANSFORMERS = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        row = torch.arange(index, index + 8) % 32
        return {"input_ids": row, "labels": row}

config = GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=2,
                    bos_token_id=0, eos_token_id=0)
arguments = TrainingArguments(
    "saved", max_steps=10, per_device_train_batch_size=4, gradient_accumulation_steps=2,
    logging_steps=1, report_to="tensorboard", save_strategy="no", use_cpu=True,
)
Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Tokens()).train()
"""

ACCELERATE = """
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

def main():
    set_seed(7)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(64, 4))
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for (batch,) in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).square().mean())
            optimizer.step()
            optimizer.zero_grad()

if __name__ == "__main__":
    main()
"""

# The writer is never closed and waits two minutes before it flushes by itself; the last numbers
# come when the script has been stopped already.
TENSORBOARD = """
import json
import torch
from torch.utils.tensorboard import SummaryWriter

def main():
    writer = SummaryWriter()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        for step in range(1, 100):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).square().mean()
            writer.add_scalar("loss/train", loss, step)
            writer.add_scalar("exact", loss.item(), step, new_style=True, double_precision=True)
            writer.add_histogram("weight", model.weight, step)
            with open("metrics.jsonl", "a") as lines:
                lines.write(json.dumps({"step": step, "loss": loss.item()}) + "\\n")
            loss.backward()
            optimizer.step()
    finally:
        for step in range(100):
            writer.add_scalar("end", step, step)

main()
"""


# What these libraries do by themselves: draw a seed while they are imported, empty the environment
# around a call.
LIBRARIES = {
    "scipy": "import scipy.stats",
    "accelerate": "from accelerate import Accelerator\nAccelerator(cpu=True)",
    "lightning": "import lightning",
    "datasets": """
import datasets, json, pathlib
pathlib.Path("rows.json").write_text(json.dumps([{"text": "one"}, {"text": "two"}]))
datasets.load_dataset("json", data_files="rows.json", split="train")
""",
    "transformers": """
from transformers import TrainingArguments
TrainingArguments("saved", use_cpu=True, report_to="none")
""",
}
PLAIN = """
import torch
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    weight.square().sum().backward()
    optimizer.step()
"""


def assert_same(first: Trained, second: Trained) -> None:
    assert first.evidence.metrics == second.evidence.metrics
    # each run decides by itself which steps it observes
    assert compare_steps(first.evidence.steps, second.evidence.steps)[0] == ()
    assert first.evidence.checkpoint == second.evidence.checkpoint


def launch(*options: str) -> tuple[str, ...]:
    """`accelerate launch`, by its module: the script may not be on PATH."""
    return (
        *(sys.executable, "-m", "accelerate.commands.launch", "--num_machines=1"),
        *("--mixed_precision=no", "--dynamo_backend=no", *options, "train.py"),
    )


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_a_library_does_by_itself_is_no_finding(trainings: Trainings, library: str) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed: make test-frameworks")
    found = trainings.run(f"{LIBRARIES[library]}\n{PLAIN}").evidence
    assert [override for override in found.overrides if override.weakens] == []
    assert override_findings((found, found), repeats=True) == ()


def test_lightning_trains_and_logs_the_same_again(trainings: Trainings) -> None:
    pytest.importorskip("lightning", reason="lightning is not installed: make test-frameworks")
    metrics = {"tensorboard": "logs"}
    first, second = (trainings.run(LIGHTNING, metrics=metrics) for _ in range(2))
    assert_same(first, second)
    assert len(first.passes()) == 2 * len(first.evidence.steps) == 6
    assert len(first.series("tensorboard.train_loss")) >= 2
    assert "state/model/0/layer.weight" in first.tensors()


def test_the_trainer_of_transformers_trains_the_same_again(trainings: Trainings) -> None:
    pytest.importorskip(
        "transformers", reason="transformers is not installed: make test-frameworks"
    )
    pytest.importorskip("accelerate", reason="accelerate is not installed: make test-frameworks")
    metrics = {"tensorboard": ".", "tensorboard_tags": ("*/loss", "*/grad_norm")}
    first, second = (trainings.run(TRANSFORMERS, metrics=metrics) for _ in range(2))
    assert_same(first, second)
    assert len(first.passes()) == 2 * len(first.evidence.steps) == 6
    assert first.series("tensorboard.train/loss")


def test_accelerate_trains_the_same_however_it_is_started(trainings: Trainings) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed: make test-frameworks")
    plain = trainings.run(ACCELERATE)
    launched = trainings.run(ACCELERATE, command=launch("--cpu", "--num_processes=1"))
    assert_same(plain, launched)
    assert len(plain.passes()) == 6


@pytest.fixture(scope="module")
def two_ranks(trainings: Trainings) -> Trained:
    pytest.importorskip("accelerate", reason="accelerate is not installed: make test-frameworks")
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    return trainings.run(ACCELERATE, command=(*torchrun, "train.py"))


def test_two_ranks_of_accelerate_stop_at_the_same_step(two_ranks: Trained) -> None:
    evidence = two_ranks.evidence
    assert evidence.environment.parts["world_size"] == "2"
    assert {process.rank for process in evidence.processes} == {0, 1}
    assert len(evidence.steps) == 3
    ends = {name: digest for name, digest in two_ranks.tensors().items() if "/model/" in name}
    assert ends["state/model/0/module.weight"] == ends["state.rank1/model/0/module.weight"]


def test_accelerate_launch_starts_two_ranks_alike(trainings: Trainings, two_ranks: Trained) -> None:
    # with --cpu alone it starts one process; this is its way to torchrun, which needs no GPU
    launched = trainings.run(ACCELERATE, command=launch("--multi_gpu", "--num_processes=2"))
    assert {process.rank for process in launched.evidence.processes} == {0, 1}
    assert_same(two_ranks, launched)


def test_an_unclosed_tensorboard_writer_loses_nothing(trainings: Trainings) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: make test-frameworks")
    metrics = {"tensorboard": "runs", "file": "metrics.jsonl"}
    trained = trainings.run(TENSORBOARD, metrics=metrics, max_steps=30)
    losses = trained.series("loss")
    assert len(losses) == 30
    for name in ("tensorboard.loss/train", "tensorboard.exact", "file.loss"):
        assert trained.series(name) == losses
    assert trained.series("tensorboard.end") == [float(step) for step in range(100)]
