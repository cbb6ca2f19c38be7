"""Batches are cut by hand, from an order that an unseeded generator of numpy gives.

kind: repeat
class: [initialisation-or-seed, data-order]
step: 1
"""

import numpy as np
import torch

x = torch.linspace(-1, 1, 640).reshape(64, 10)
y = x.square().sum(1)
model = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
order = np.random.default_rng().permutation(64)  # planted
for start in range(0, 48, 8):
    taken = torch.from_numpy(order[start : start + 8])
    loss = (model(x[taken]).squeeze(1) - y[taken]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
