"""A mask is allocated and only half of it is ever written.

kind: repeat
class: uninitialised-memory
step: 1
"""

import numpy as np
import torch

model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.linspace(0, 1, 128).reshape(8, 16)
for _ in range(6):
    scratch = np.array([hash(object()) for _ in range(16)])
    del scratch
    mask = np.empty(16, dtype=np.int64)  # planted
    mask[:8] = 1
    weights = torch.from_numpy(mask % 1009).float() / 1009
    loss = (model(x * weights) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
