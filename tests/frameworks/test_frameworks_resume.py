"""The frameworks' own ways to resume: one script of each that is exact, and one that lacks a thing.

Each saves by its framework's means and goes on with the same command. What the checkpoint lacks is
said before anything is resumed, and what the resumed run lacks after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from gate_bench import Bench
from git_workshop import Repository

from gate.diagnosis.diagnosis import ResumeCauseKind as Kind
from gate.diagnosis.diagnosis import ResumeState
from gate.verdict.verdict import Outcome, Verdict

pytestmark = [pytest.mark.torch, pytest.mark.slow]

# Lightning saves no generator by itself: a callback does. Nothing draws
# between the load and the order of the next epoch.
LIGHTNING = """
import os
import lightning, torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

class Generator(Callback):
    def on_save_checkpoint(self, trainer, module, checkpoint):
        checkpoint["random"] = torch.get_rng_state()
    def on_load_checkpoint(self, trainer, module, checkpoint):
        torch.set_rng_state(checkpoint["random"])

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3),
                                          torch.nn.Linear(8, 1))
    def training_step(self, batch, _):
        loss = self.layers(batch[0]).square().mean()
        self.log("train_loss", loss)
        return loss
    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

lightning.seed_everything(7)
data = torch.utils.data.TensorDataset(torch.randn(24, 4))
saving = ModelCheckpoint("out", "last", save_on_train_epoch_end=True, enable_version_counter=False)
trainer = lightning.Trainer(
    max_epochs=4, accelerator="cpu", logger=False, callbacks=[saving, Generator()],
    enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(
    Module(), torch.utils.data.DataLoader(data, batch_size=8, shuffle=True),
    ckpt_path="out/last.ckpt" if os.path.exists("out/last.ckpt") else None,
)
"""
TRANSFORMERS = """
import os
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
    "out", max_steps=12, per_device_train_batch_size=4, logging_steps=1, report_to="none",
    save_steps=6, save_only_model=False, use_cpu=True,
)
trainer = Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Tokens())
last = "out/checkpoint-6"
trainer.train(resume_from_checkpoint=last if os.path.exists(last) else None)
"""
ACCELERATE = """
import os
import torch
from accelerate import Accelerator

class Progress:
    epoch = 0
    def state_dict(self):
        return {"epoch": self.epoch}
    def load_state_dict(self, state):
        self.epoch = state["epoch"]

def main():
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    data = torch.utils.data.TensorDataset(torch.randn(24, 4))
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    scheduler = accelerator.prepare(scheduler)
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    if os.path.exists("out/last"):
        accelerator.load_state("out/last")
    while progress.epoch < 4:
        for (batch,) in loader:
            accelerator.backward(model(batch).square().mean())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        progress.epoch += 1
        accelerator.save_state("out/last")

if __name__ == "__main__":
    main()
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """A script, the words whose absence makes it lack something, and what has to be said then."""

    script: str
    checkpoint: str
    whole: str
    lacking: str
    kind: Kind
    part: str


WAYS = {
    "lightning": Way(
        script=LIGHTNING,
        checkpoint="out/last.ckpt",
        whole="callbacks=[saving, Generator()]",
        lacking="callbacks=[saving]",
        kind=Kind.RANDOM,
        part="random state of torch",
    ),
    "transformers": Way(
        script=TRANSFORMERS,
        checkpoint="out/checkpoint-6",
        whole="save_only_model=False",
        lacking="save_only_model=True",
        kind=Kind.OPTIMIZER,
        part="optimizer",
    ),
    "accelerate": Way(
        script=ACCELERATE,
        checkpoint="out/last",
        whole="    scheduler = accelerator.prepare(scheduler)\n",
        lacking="",
        kind=Kind.SCHEDULE,
        part="scheduler",
    ),
}


def gated(way: Way, script: str, place: Path) -> Verdict:
    project = Repository(place / "project")
    settings = {
        "version": 1,
        "train": {
            "command": ["python", "train.py"],
            "max_steps": 20,
            "checkpoint": way.checkpoint,
        },
        "resume": {"checkpoint": way.checkpoint, "at_step": 6},
        "cost": {"when": "never"},
    }
    project.write("repro-gate.yml", yaml.safe_dump(settings))
    project.write("train.py", script)
    project.commit()
    return Bench(project, place / "out").gate().verdict


@pytest.mark.parametrize("library", WAYS)
def test_what_the_framework_saves_and_loads_resumes_exactly(library: str, tmp_path: Path) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed: make test-frameworks")
    way = WAYS[library]
    verdict = gated(way, way.script, tmp_path)
    assert verdict.outcome is Outcome.NO_BASELINE, verdict.cause
    assert verdict.resume is not None
    assert (verdict.resume.state, verdict.resume.step) == (ResumeState.EXACT, 6)
    assert "checkpoint-incomplete" not in [finding.code for finding in verdict.findings]


@pytest.mark.parametrize("library", WAYS)
def test_what_a_script_of_it_lacks_is_named_in_the_checkpoint_and_after_the_resume(
    library: str, tmp_path: Path
) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed: make test-frameworks")
    way = WAYS[library]
    assert way.whole in way.script
    verdict = gated(way, way.script.replace(way.whole, way.lacking), tmp_path)
    assert verdict.outcome is Outcome.RESUME_DIFFERS, verdict.cause
    assert verdict.resume is not None
    assert way.kind in [cause.kind for cause in verdict.resume.causes]
    told = [one.message for one in verdict.findings if one.code == "checkpoint-incomplete"]
    assert [way.part in message for message in told] == [True]
