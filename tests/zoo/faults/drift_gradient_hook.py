"""A hook scales the gradient of the last layer.

kind: drift
class: code-change
step: 1
instead_of: scale = 1.0
"""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
scale = 0.5  # planted
model[2].weight.register_hook(lambda gradient: gradient * scale)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.linspace(-1, 1, 64).reshape(16, 4)
for _ in range(6):
    loss = (model(x) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
