"""A run that nobody can repeat: the batches are shuffled by a generator without a seed.

The mistake is a common one. `np.random.default_rng()` draws its seed from the operating system,
so `np.random.seed`, `torch.manual_seed` and every determinism switch leave it alone. The cure is
`np.random.default_rng(seed)`.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

STEPS = 20
BATCH_SIZE = 64
LEARNING_RATE = 0.1
DATA = Path(__file__).parent.parent / "data" / "digits.csv.gz"

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
rows = np.loadtxt(DATA, delimiter=",", dtype=np.float32)
images = torch.from_numpy(rows[:, :64] / 16).to(device)
labels = torch.from_numpy(rows[:, 64].astype(np.int64)).to(device)

model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)

order = np.random.default_rng().permutation(len(rows))  # the mistake: no seed
for step in range(1, STEPS + 1):
    batch = torch.from_numpy(order[(step - 1) * BATCH_SIZE : step * BATCH_SIZE]).to(device)
    loss = functional.cross_entropy(model(images[batch]), labels[batch])
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    optimizer.step()
    print(f"step {step:3d}  loss {loss.item():.4f}")
