"""A run that repeats perfectly, and is still not the run that the baseline remembers.

The committed baseline was recorded with `LEARNING_RATE = 0.10`. Since then somebody "only tuned"
it to 0.11, without recording the baseline again: the two strict runs agree with each other, bit
for bit, and both differ from the baseline. The cure is to take the change back, or to record a
new baseline in the same pull request, where a reviewer sees it.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

STEPS = 20
BATCH_SIZE = 64
LEARNING_RATE = 0.11  # the baseline was recorded with 0.10
DATA = Path(__file__).parent.parent / "data" / "digits.csv.gz"

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
rows = np.loadtxt(DATA, delimiter=",", dtype=np.float32)
images = torch.from_numpy(rows[:, :64] / 16).to(device)
labels = torch.from_numpy(rows[:, 64].astype(np.int64)).to(device)

model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)

order = torch.randperm(len(rows)).to(device)
for step in range(1, STEPS + 1):
    batch = order[(step - 1) * BATCH_SIZE : step * BATCH_SIZE]
    loss = functional.cross_entropy(model(images[batch]), labels[batch])
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    optimizer.step()
    print(f"step {step:3d}  loss {loss.item():.4f}")
