"""Each process seeds itself with its number.

kind: repeat
class: initialisation-or-seed
step: 1
"""

import os
import random

import numpy as np
import torch


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


seed_everything(os.getpid())  # planted
model = torch.nn.Conv1d(1, 4, 3, padding=1)
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.001)
signal = torch.sin(torch.arange(32.0)).reshape(1, 1, 32)
for _ in range(6):
    loss = (model(signal).mean(1, keepdim=True) - signal).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
