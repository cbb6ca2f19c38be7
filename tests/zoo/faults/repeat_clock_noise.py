"""Noise for the input comes from a common generator that was seeded with the clock.

kind: repeat
class: [initialisation-or-seed, random-state-use]
step: 1
"""

import time

import numpy as np
import torch

model = torch.nn.Linear(5, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
np.random.seed(int(time.time() * 1000) % 2**32)  # planted
clean = torch.ones(4, 5)
for _ in range(6):
    noisy = clean + torch.from_numpy(np.random.randn(4, 5)).float() * 0.01
    loss = (model(noisy) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
