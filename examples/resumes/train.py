"""Learn to read handwritten digits, in a run that may be interrupted and goes on exactly.

Every five steps the script saves all that the next step depends on. `python train.py --resume`
goes on from there, in the middle of an epoch too: the generator's state from before the epoch
gives the order of the samples again, and the batches that were taken are skipped.
"""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

BATCH_SIZE = 100
LEARNING_RATE = 5e-3
STEPS = 25
SAVE_EVERY = 5
TRAINING_IMAGES = 1600  # 16 batches an epoch
DATA = Path(__file__).parent.parent / "data" / "digits.csv.gz"
LAST = Path("checkpoints/last.pt")

parser = argparse.ArgumentParser()
parser.add_argument("--resume", action="store_true", help=f"go on from {LAST}")
resume = parser.parse_args().resume

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
rows = torch.from_numpy(np.loadtxt(DATA, delimiter=",", dtype=np.float32))[:TRAINING_IMAGES]
batches = DataLoader(
    TensorDataset(rows[:, :64] / 16, rows[:, 64].long()), batch_size=BATCH_SIZE, shuffle=True
)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.25), nn.Linear(64, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

step = taken = 0  # steps in all, and batches of this epoch
epoch_random = torch.get_rng_state()
random = None
if resume:
    saved = torch.load(LAST)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    step, taken = saved["step"], saved["taken"]
    epoch_random = saved["epoch_random"]
    random = saved["random"]


def save() -> None:
    """Write beside the checkpoint and rename: a kill in between leaves the older one whole."""
    LAST.parent.mkdir(exist_ok=True)
    part = LAST.with_suffix(".part")
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "step": step,
        "taken": taken,
        "epoch_random": epoch_random,
        "random": {
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        },
    }
    torch.save(state, part)
    with part.open("rb") as written:
        os.fsync(written.fileno())
    part.replace(LAST)


with Path("metrics.jsonl").open("a", encoding="utf-8") as metrics:
    while step < STEPS:
        torch.set_rng_state(epoch_random)
        for number, (images, labels) in enumerate(batches, start=1):
            if number <= taken:
                continue
            if random is not None:
                # last: making the loader and skipping batches drew from the generator too
                torch.set_rng_state(random["torch"])
                if torch.cuda.is_available():
                    torch.cuda.set_rng_state_all(random["cuda"])
                random = None
            loss = functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            metrics.write(json.dumps({"step": step + 1, "train_loss": loss.item()}) + "\n")
            optimizer.step()
            scheduler.step()
            step, taken = step + 1, number
            if step % SAVE_EVERY == 0:
                save()
            if step == STEPS:
                break
        else:
            taken = 0
            epoch_random = torch.get_rng_state()
