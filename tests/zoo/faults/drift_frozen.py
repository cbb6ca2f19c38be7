"""The first layer is frozen.

kind: drift
class: structure
step: 1
saved_outcome: not-comparable
instead_of: model[0].weight.requires_grad_(True)
"""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
model[0].weight.requires_grad_(False)  # planted
optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.05)
x = torch.linspace(-1, 1, 64).reshape(16, 4)
for _ in range(6):
    loss = (model(x) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
