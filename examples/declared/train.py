"""Learn to read handwritten digits that were prepared: see prepare.py, and repro-gate.yml."""

import json
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

READY = Path(__file__).parent / "ready"
BATCH_SIZE = 64
STEPS = 25

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
rows = torch.from_numpy(np.load(READY / "train.npy")).to(device)
images, labels = rows[:, :64] / 16, rows[:, 64].long()
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
order = torch.randperm(len(rows)).to(device)

with Path("metrics.jsonl").open("w", encoding="utf-8") as metrics:
    for step in range(1, STEPS + 1):
        chosen = order[(step - 1) * BATCH_SIZE : step * BATCH_SIZE]
        loss = functional.cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        metrics.write(json.dumps({"step": step, "train_loss": loss.item()}) + "\n")
    unseen = torch.from_numpy(np.load(READY / "test.npy")).to(device)
    with torch.no_grad():
        right = model(unseen[:, :64] / 16).argmax(dim=1) == unseen[:, 64].long()
    metrics.write(json.dumps({"step": STEPS, "test_accuracy": right.float().mean().item()}) + "\n")
