"""Learn to read handwritten digits: a small convolutional network, one pass over the data.

An ordinary script: it takes a GPU when there is one, and sets neither a seed nor a determinism
switch. It ends by itself after 25 steps, so the checkpoint that it saves last is really saved.
"""

import json
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

BATCH_SIZE = 64
LEARNING_RATE = 5e-3
TRAINING_IMAGES = 1600
DATA = Path(__file__).parent.parent / "data" / "digits.csv.gz"

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# Each row is one image: 64 pixels from 0 to 16, then the digit that it shows.
rows = np.loadtxt(DATA, delimiter=",", dtype=np.float32)
images = torch.from_numpy(rows[:, :64] / 16).reshape(-1, 1, 8, 8)
labels = torch.from_numpy(rows[:, 64].astype(np.int64))
training_set = TensorDataset(images[:TRAINING_IMAGES], labels[:TRAINING_IMAGES])
batches = DataLoader(training_set, batch_size=BATCH_SIZE, shuffle=True)

model = nn.Sequential(
    nn.Conv2d(1, 32, kernel_size=3, padding=1),
    nn.ReLU(),
    nn.Conv2d(32, 64, kernel_size=3, padding=1),
    nn.ReLU(),
    nn.AvgPool2d(2),
    nn.Flatten(),
    nn.Dropout(0.25),
    nn.Linear(64 * 4 * 4, 10),
).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)

with Path("metrics.jsonl").open("w", encoding="utf-8") as metrics:
    for step, (batch_images, batch_labels) in enumerate(batches, start=1):
        targets = batch_labels.to(device)
        logits = model(batch_images.to(device))
        loss = functional.cross_entropy(logits, targets)
        accuracy = (logits.argmax(dim=1) == targets).float().mean()

        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        record = {"step": step, "train_loss": loss.item(), "train_accuracy": accuracy.item()}
        metrics.write(json.dumps(record) + "\n")
        print(f"step {step:3d}  loss {record['train_loss']:.4f}")
        optimizer.step()

    model.eval()
    with torch.no_grad():
        answers = model(images[TRAINING_IMAGES:].to(device)).argmax(dim=1).cpu()
    test_accuracy = (answers == labels[TRAINING_IMAGES:]).float().mean().item()
    metrics.write(json.dumps({"step": len(batches), "test_accuracy": test_accuracy}) + "\n")
    print(f"accuracy on unseen images {test_accuracy:.4f}")

torch.save(model.state_dict(), "checkpoint.pt")
